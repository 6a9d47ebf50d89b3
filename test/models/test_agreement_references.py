"""The networks that the table of docs/models.md is measured with."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent / "agreement"))
from exported_references import export_detr, vary

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Tiny(nn.Module):
    """Dropout, as in DETR, batch normalization and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 32, 32, bias=False), nn.BatchNorm2d(8), nn.Dropout(0.5))
        self.class_head = nn.Linear(8, 5)

    def forward(self, pixel_values: torch.Tensor) -> SimpleNamespace:
        rows = self.features(pixel_values).flatten(2).transpose(1, 2)
        return SimpleNamespace(logits=self.class_head(rows), pred_boxes=rows[..., :4].sigmoid())


def varied_network() -> Tiny:
    torch.manual_seed(0)
    network = Tiny()
    vary(network, lambda image: network(pixel_values=image), 1)
    return network


def test_the_reference_is_the_network_of_the_file(tmp_path: Path) -> None:
    """torch.onnx.export leaves a network in the mode that it had; in training mode, dropout is active."""
    import onnxruntime

    network = varied_network()
    export_detr(network, tmp_path / "tiny.onnx")
    image = torch.rand(1, 3, 320, 320)
    session = onnxruntime.InferenceSession(str(tmp_path / "tiny.onnx"), providers=["CPUExecutionProvider"])
    logits, _ = session.run(None, {"pixel_values": image.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(network(image).logits.numpy(), logits, atol=1e-4)


def test_scores_differ_between_positions() -> None:
    network = varied_network()
    assert not any(part.training for part in network.modules())
    with torch.no_grad():
        logits = network(torch.rand(1, 3, 320, 320)).logits[0]
    assert float(logits.std(dim=0).min()) > 0.01
