"""One important DNN among others that are never idle: the compared cases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from multi_dnn_ros.benchmark.paper.important import MAX_P99_RATIO, MIN_THROUGHPUT, ImportantPlan, cases
from multi_dnn_ros.benchmark.paper.sets import SETS
from multi_dnn_ros.cli.main import main


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.long  # short: the test of the cases below, and test_deadlines, which runs several DNNs in the same loops
def test_each_case_is_compared_with_the_dnn_alone_and_with_fifo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "important.json"
    arguments = ["--device", "cpu", "--repeats", "1", "--seconds", "0.4", "--jobs", "2", "--others", "2"]
    arguments += ["--important", "squeezenet1_1", "--output", str(output)]
    assert main(["benchmark", "important", *arguments]) == 0
    found = json.loads(output.read_text())
    assert found["command"].split()[0] == "multi-dnn"
    assert found["aims"] == {"p99_ratio": MAX_P99_RATIO, "throughput": MIN_THROUGHPUT}
    assert found["settings"]["background"] == ["resnet18", "squeezenet1_1"]
    (row,) = found["rows"]
    assert row["important"] == "squeezenet1_1"
    assert list(row["cases"]) == ["alone", "fifo", "priority"]
    alone, fifo, priority = row["cases"].values()
    assert (alone["background_hz"], alone["throughput"], alone["p99_ratio"]) == (0.0, None, 1.0)
    assert fifo["throughput"] == 1.0
    assert priority["throughput"] == pytest.approx(priority["background_hz"] / fifo["background_hz"])
    assert priority["p99_ratio"] == pytest.approx(priority["latency_ms"]["p99"] / alone["latency_ms"]["p99"])
    assert all(1 <= case["latency_ms"]["samples"] <= 12 for case in row["cases"].values())
    assert all(case["served"] == case["latency_ms"]["samples"] / 12 for case in row["cases"].values())  # of 0.4 s
    assert "p99 over alone" in capsys.readouterr().out


@pytest.mark.long  # short: an interrupted run of test_deadlines
def test_an_interrupted_run_keeps_the_cases_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(text: str) -> None:
        if text.startswith("run 6 of 6"):
            raise KeyboardInterrupt

    monkeypatch.setattr("multi_dnn_ros.cli.benchmark_deadlines.print_progress", lambda: interrupt)
    output = tmp_path / "important.json"
    arguments = ["--device", "cpu", "--repeats", "2", "--seconds", "0.2", "--jobs", "2", "--others", "1"]
    arguments += ["--important", "squeezenet1_1", "--output", str(output)]
    assert main(["benchmark", "important", *arguments]) == 130
    (row,) = json.loads(output.read_text())["rows"]  # five runs of three cases
    assert list(row["cases"]) == ["alone", "fifo", "priority"]


def test_on_a_gpu_bounds_are_measured_in_addition_to_the_default() -> None:
    networks = tuple(SETS["small"].kinds)
    plan = ImportantPlan(networks, networks, torch.device("cuda", 0), bounds=(1, 3))
    assert [(case.name, case.policy, case.bound) for case in cases(plan)[1:]] == [
        ("fifo", "fifo", None),
        ("priority", "priority", None),
        ("priority, at most 1 launched", "priority", 1),
        ("priority, at most 3 launched", "priority", 3),
    ]


def test_wrong_usage_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--set", "fig5"], "--set is fig5, which is several sets; choose one: vgg16_x8"),
        (
            ["--background", "vgg16"],
            "--background is 'vgg16'; allowed with --set small: resnet18, squeezenet1_1",
        ),
        (["--condition", "ours_fp16"], "'ours_fp16', which needs a GPU"),
    ):
        assert main(["benchmark", "important", "--device", "cpu", *arguments]) == 2
        assert words in capsys.readouterr().err
