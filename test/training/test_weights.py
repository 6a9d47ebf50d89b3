"""The built-in networks: their layers, the metadata of their files, and their scores on generated scenes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch.utils.flop_counter import FlopCounterMode

import multi_dnn_ros
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.models.networks import Encoder, build

pytestmark = pytest.mark.usefixtures("one_thread")
WEIGHTS = Path(multi_dnn_ros.__file__).parent / "weights"
#: Main score of each network and its lowest value on a few unseen scenes.
FLOORS = {"lane": ("f1", 0.93), "object": ("map50", 0.85), "pedestrian": ("map50", 0.8)}


@pytest.mark.parametrize(
    ("architecture", "arguments", "message"),
    [
        ("LaneNt", {}, "'LaneNt': not one of DetectorNet, LaneNet"),
        ("LaneNet", {"depth": 3}, "LaneNet with arguments {'depth': 3}"),
        ("DetectorNet", {"classes": 1, "input_size": [100, 64]}, "100x64: both sides must be multiples of 32"),
    ],
)
def test_what_cannot_be_built_is_named(architecture: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(architecture, arguments)
    with pytest.raises(ValueError, match="3 channel counts need 2 blocks, got 1"):
        Encoder((8, 8, 8), (1,))


@pytest.mark.parametrize("role", FLOORS)
def test_a_file_builds_a_small_network(role: str) -> None:
    file = WEIGHTS / f"{role}.safetensors"
    assert file.stat().st_size < 3_000_000
    with safe_open(file, "pt") as opened:
        metadata = {name: json.loads(value) for name, value in opened.metadata().items()}
        weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    network = build(metadata["architecture"], metadata["arguments"]).eval()
    missing, unexpected = network.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    width, height = metadata["input_size"]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, 3, height, width))
    assert counter.get_total_flops() / 2 < 1.0e9  # multiply-accumulates: small enough for three on two CPU cores
    data = metadata["training"]["data"]
    assert len({data["train"]["seed"], data["choice"]["seed"], 3}) == 3  # tested on scenes of seed 3


@pytest.mark.parametrize("role", FLOORS)
def test_unseen_scenes(role: str, tmp_path: Path) -> None:
    models, (main_score, floor) = [f"builtin:{role}", f"builtin:{role}_small"], FLOORS[role]
    data = ["--data", f"road:{tmp_path / 'road'}", "--scenes", str(12 * 20), "--limit", "20", "--device", "cpu"]
    assert main(["evaluate", *models, *data, "--report", str(tmp_path / role)]) == 0
    original, small = json.loads((tmp_path / role / "report.json").read_text())["networks"]
    assert small["macs"] <= 0.6 * original["macs"]
    for row in (original, small):
        (scores,) = row["scores"].values()
        assert scores[main_score] >= floor
