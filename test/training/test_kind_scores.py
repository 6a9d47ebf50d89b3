"""Scores of a result kind of another package: shown under their names, and checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.training.metrics import NoTruth
from multi_dnn_ros.training.scoring import scores_of
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, ResultKind
from multi_dnn_ros.vision.results import OutputError

pytestmark = pytest.mark.usefixtures("one_thread")
PAIRS = ((1, 2), (3, 4))


def kind(score: Any) -> ResultKind:
    return ResultKind("points", int, (), truth="boxes", score=score)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({"blur": float("nan")}, "returned nan as 'blur'; allowed: finite numbers"),
        ({"near": 1.0, "blur": float("inf")}, "returned inf as 'blur'; allowed: finite numbers"),
        ({"blur": "much"}, "returned 'much' as 'blur'; allowed: finite numbers"),
        ({"blur": None}, "returned None as 'blur'; allowed: finite numbers"),
        (None, "returned NoneType; expected scores by name"),
    ],
)
def test_scores_that_are_no_numbers_are_refused(returned: Any, said: str) -> None:
    with pytest.raises(ExtensionError) as refused:
        scores_of(kind(lambda pairs, labels: returned), PAIRS, ())
    assert str(refused.value) == f"`score` of result kind 'points' {said}"


def test_a_score_that_raises_is_named_and_an_error_of_the_network_is_unchanged() -> None:
    def fail(pairs: Any, labels: Any) -> Any:
        raise IndexError(f"{len(list(pairs))} points\nin all")

    with pytest.raises(ExtensionError, match=r"^`score` of result kind 'points' raised IndexError: 2 points$"):
        scores_of(kind(fail), PAIRS, ())

    def broken() -> Iterator[tuple[Any, Any]]:
        yield PAIRS[0]
        raise OutputError("image a: wrong shape")

    with pytest.raises(OutputError, match=r"^image a: wrong shape$"):
        scores_of(kind(lambda pairs, labels: {"count": len(list(pairs))}), broken(), ())

    def untrue(pairs: Any, labels: Any) -> Any:
        raise NoTruth("no true box")

    with pytest.raises(NoTruth, match=r"^no true box$"):
        scores_of(kind(untrue), PAIRS, ())
    assert scores_of(kind(lambda pairs, labels: {"count": np.float32(2)}), PAIRS, ()) == {"count": 2.0}


@pytest.fixture
def detections_scored_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Replace the `score` of the kind of the DNNs below, as if it were of another package."""

    def set_score(score: Any) -> None:
        found = replace(RESULT_KINDS.get("detections"), score=score)
        monkeypatch.setattr(RESULT_KINDS, "get", lambda name: found)

    return set_score


@pytest.mark.parametrize(
    ("returned", "columns"),
    [
        ({"count": 3.0, "near": 0.25}, "| count  | near   | GMACs"),
        ({"map": 0.5, "map50": 1.0, "map50_pedestrian": 1.0, "blur": 0.25}, "| map    | map50  | blur   | GMACs"),
    ],
)
def test_evaluate_shows_the_scores_that_the_kind_returns(
    returned: dict[str, float], columns: str, detections_scored_by: Callable[[Any], None], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    detections_scored_by(lambda pairs, labels: returned)
    data, report = f"road:{tmp_path / 'road'}", tmp_path / "report"
    command = ["evaluate", "builtin:pedestrian_small", "--data", data, "--scenes", "4", "--limit", "2"]
    assert main([*command, "--device", "cpu", "--report", str(report)]) == 0
    assert columns in capsys.readouterr().out
    (network,) = json.loads((report / "report.json").read_text())["networks"]
    assert network["scores"][data] == {"images": 2, **returned}


@pytest.mark.parametrize("command", ["evaluate", "retrain"])
def test_a_score_that_raises_is_one_line_of_the_command(
    command: str, detections_scored_by: Callable[[Any], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    detections_scored_by(lambda pairs, labels: {}["blur"])
    more = ["--output", str(tmp_path / "model.safetensors"), "--epochs", "1"] if command == "retrain" else []
    begin = [command, "builtin:pedestrian_small", "--data", f"road:{tmp_path / 'road'}", "--scenes", "4", *more]
    assert main([*begin, "--device", "cpu"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.endswith("`score` of result kind 'detections' raised KeyError: 'blur'")


def test_retrain_needs_the_deciding_score(
    detections_scored_by: Callable[[Any], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    detections_scored_by(lambda pairs, labels: {"count": 1.0, "near": 0.5})
    data = ["--data", f"road:{tmp_path / 'road'}", "--scenes", "4", "--epochs", "1", "--device", "cpu"]
    assert main(["retrain", "builtin:pedestrian_small", *data, "--output", str(tmp_path / "model.safetensors")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "result kind 'detections' returns the scores count, near; training on boxes needs map50" in error
