"""The package's networks: outputs, sizes, and metadata of their weights files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import multi_dnn_ros
from multi_dnn_ros.models.networks import DetectorNet, Encoder, LaneNet, build, cells

WEIGHTS = Path(multi_dnn_ros.__file__).parent / "weights"
ROLES = ("lane", "object", "pedestrian")


def header(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        return {name: json.loads(value) for name, value in file.metadata().items()}


def load(path: Path) -> nn.Module:
    metadata = header(path)
    network = build(metadata["architecture"], metadata["arguments"])
    with safe_open(path, "pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    missing, unexpected = network.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    return network.eval()


def test_lane_logits_have_the_size_of_the_input() -> None:
    assert LaneNet().eval()(torch.zeros(2, 3, 96, 160)).shape == (2, 1, 96, 160)


def test_the_detector_returns_boxes_and_probabilities_for_every_cell() -> None:
    torch.manual_seed(0)
    rows = DetectorNet(3, (96, 64)).eval()(torch.rand(2, 3, 64, 96))
    assert rows.shape == (2, 7, 12 * 8 + 6 * 4 + 3 * 2)
    assert rows.dtype == torch.float32
    assert (rows[:, 2:4] > 0).all()
    assert ((rows[:, 4:] > 0) & (rows[:, 4:] < 0.2)).all()  # untrained: objects are rare
    points, scales = cells(96, 64, DetectorNet.STRIDES)
    assert ((rows[:, :2] - points.T).abs() < 4 * scales).all()


def test_cells_run_row_by_row_finest_first() -> None:
    points, scales = cells(32, 16, (8, 16))
    assert points[:5].tolist() == [[4, 4], [12, 4], [20, 4], [28, 4], [4, 12]]
    assert points[8:].tolist() == [[8, 8], [24, 8]]
    assert scales.tolist() == [8.0] * 8 + [16.0] * 2


def test_half_precision_networks_return_boxes_in_float32() -> None:
    rows = DetectorNet(1, (64, 64)).to(torch.bfloat16).eval()(torch.rand(1, 3, 64, 64, dtype=torch.bfloat16))
    assert rows.dtype == torch.float32


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


def test_an_encoder_needs_blocks_for_every_stage() -> None:
    with pytest.raises(ValueError, match="3 channel counts need 2 blocks, got 1"):
        Encoder((8, 8, 8), (1,))


@pytest.mark.parametrize("role", ROLES)
def test_shipped_weights_build_their_network(role: str) -> None:
    metadata = header(WEIGHTS / f"{role}.safetensors")
    assert set(metadata) == {"architecture", "arguments", "input_size", "labels", "decoder", "training"}
    width, height = metadata["input_size"]
    network = load(WEIGHTS / f"{role}.safetensors")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.zeros(1, 3, height, width))
    assert counter.get_total_flops() / 2 < 1.0e9  # multiply-accumulates: small enough for three on two CPU cores
    assert metadata["training"]["data"]["train"]["seed"] != metadata["training"]["data"]["choice"]["seed"] != 3
    assert {"torch", "numpy", "cv2", "python"} == set(metadata["training"]["versions"])


def test_shipped_weights_are_small() -> None:
    assert sum((WEIGHTS / f"{role}.safetensors").stat().st_size for role in ROLES) <= 8_000_000
