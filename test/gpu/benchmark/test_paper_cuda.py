"""The paper's experiments on a GPU: every condition runs, shares of the SMs are shares. CPU twins: test/benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multi_dnn_ros.backends import green_contexts
from multi_dnn_ros.benchmark.paper.sets import CONDITIONS
from multi_dnn_ros.cli.main import main

partitioned = pytest.mark.skipif(not green_contexts.supported(), reason="needs a PyTorch with green contexts")
FAST = [name for name, condition in CONDITIONS.items() if condition.execution not in ("compile", "inductor")]
#: One condition of each layout: shares are made by what runs the DNNs.
OF_EACH_LAYOUT = list({CONDITIONS[name].layout: name for name in FAST}.values())


@pytest.mark.parametrize(
    ("share", "names"),
    [
        pytest.param([], FAST, id="whole_gpu"),
        pytest.param(["--sms", "16"], OF_EACH_LAYOUT, id="16_sms", marks=partitioned),
    ],
)
def test_every_condition_runs_as_it_is_meant_to(share: list[str], names: list[str], tmp_path: Path) -> None:
    output = tmp_path / "small.json"
    arguments = ["--device", "cuda", "--repeats", "1", "--seconds", "0.3", "--jobs", "4", "--output", str(output)]
    assert main(["benchmark", "paper", *arguments, *share, "--conditions", *names]) == 0
    conditions = json.loads(output.read_text())["sets"]["small"]["conditions"]
    assert list(conditions) == names
    assert all(condition["memory_bytes"] > 0 for condition in conditions.values())


def test_branches_run_at_the_same_time_and_agree(tmp_path: Path) -> None:
    output = tmp_path / "branches.json"
    arguments = ["--branches", "torchvision:googlenet", "--size", "64x64", "--repeats", "1", "--output", str(output)]
    assert main(["benchmark", "paper", "--device", "cuda", *arguments]) == 0
    (network,) = json.loads(output.read_text())["networks"]
    assert max(network["streams_used"].values()) > 1
