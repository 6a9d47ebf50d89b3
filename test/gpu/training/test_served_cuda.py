"""``multi-dnn evaluate --served`` on a GPU: the package's DNNs at fp16. CPU twin: test/training/test_scores.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multi_dnn_ros.cli.main import main

#: A twelfth of them is what is scored.
SCENES = 720


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rendered once for all three."""
    return f"road:{tmp_path_factory.mktemp('road')}"


@pytest.mark.parametrize(("role", "score"), [("object", "map50"), ("pedestrian", "map50"), ("lane", "f1")])
def test_fp16_changes_no_score_of_the_packages_dnns_by_more_than_a_hundredth(
    role: str, score: str, road: str, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    run = ["--data", road, "--scenes", str(SCENES), "--device", "cuda:0", "--served", "--precision", "fp16"]
    assert main(["evaluate", f"builtin:{role}", *run, "--report", str(report)]) == 0
    own, served = json.loads((report / "report.json").read_text())["networks"]
    assert (served["served"]["backend"], served["served"]["precision"]) == ("cuda_graph", "fp16")
    assert own["scores"][road]["images"] == served["scores"][road]["images"] == SCENES // 12
    assert own["scores"][road][score] > 0.8
    assert served["scores"][road][score] == pytest.approx(own["scores"][road][score], abs=0.01)
