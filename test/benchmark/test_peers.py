"""`multi-dnn benchmark paper --peers` on a CPU, with a small network, and the plain processes' reductions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from multi_dnn_ros.benchmark.paper import peer_comparison
from multi_dnn_ros.benchmark.paper.peers import FrameModel, Peer
from multi_dnn_ros.cli.main import main

PARAMETERS = """\
/**:
  ros__parameters:
    dnns: [lane]
    dnn:
      lane: {role: lane, model: "torchvision:lraspp_mobilenet_v3_large", weights: random, num_classes: 1,
             input_width: 64, input_height: 64, jobs: 1}
"""


def test_a_peer_returns_a_mask_or_the_best_boxes() -> None:
    images = torch.randint(0, 256, (2, 48, 64, 3), dtype=torch.uint8)
    with torch.no_grad():
        (mask,) = FrameModel(Peer("lraspp_mobilenet_v3_large", (64, 32), 1), torch.device("cpu"))(images)
        boxes, scores, labels = FrameModel(Peer("ssdlite320_mobilenet_v3_large", (320, 320)), torch.device("cpu"))(
            images
        )
    assert mask.shape == (2, 32, 64)
    assert mask.dtype == torch.uint8
    assert boxes.shape == (2, 300, 4)
    assert scores.shape == labels.shape == (2, 300)
    assert bool((scores[:, :-1] >= scores[:, 1:]).all())


@pytest.mark.long  # it starts seven processes with PyTorch, and a node
@pytest.mark.timeout(600)
def test_plain_processes_and_this_package_serve_the_same_cameras(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peer_comparison, "_HIGHEST_HZ", 31.0)
    output, parameters = tmp_path / "peers.json", tmp_path / "parameters.yaml"
    parameters.write_text(PARAMETERS)
    options = ["--device", "cpu", "--size", "80x64", "--repeats", "1", "--seconds", "0.5", "--output", str(output)]
    assert main(["benchmark", "paper", "--peers", "--params-file", str(parameters), *options]) == 0
    found = json.loads(output.read_text())
    assert list(found["sides"]) == ["plain processes", "engine, no ROS", "whole node"]
    for side in found["sides"].values():
        for part in ("at_rate", "saturated"):
            assert side["summary"][part]["results_hz"] > 0.0
            assert 0.0 < side["summary"][part]["p50_ms"] <= side["summary"][part]["p99_ms"]
    for side in ("plain processes", "engine, no ROS"):  # few samples are taken of the node in half a second
        assert found["sides"][side]["summary"]["at_rate"]["cpu_cores"] > 0.0
    assert "| plain processes " in capsys.readouterr().out


def test_a_network_that_a_peer_cannot_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text("/**: {ros__parameters: {dnns: [object]}}\n")
    assert main(["benchmark", "paper", "--peers", "--params-file", str(parameters), "--device", "cpu"]) == 2
    assert "dnn.object.model is builtin:object" in capsys.readouterr().err
