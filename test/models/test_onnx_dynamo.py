"""Exports of torch.onnx's newer exporter (dynamo=True), which needs onnxscript."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onnx_graphs import by_onnxruntime, converted
from torch import nn
from torch.utils import _pytree as pytree

pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")


class Network(nn.Module):
    """Layers and shape operators of detectors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU())
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Conv2d(16, 6, 1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.first(image)
        rows = found.flatten(2).transpose(1, 2)
        rows = self.norm(rows + self.attention(rows, rows, rows, need_weights=False)[0])
        found = torch.cat([found, rows.transpose(1, 2).reshape(found.shape)], 1)
        large = nn.functional.interpolate(self.last(found), scale_factor=2.0, mode="bilinear")
        return large, nn.functional.gelu(rows).softmax(-1).topk(3, dim=-1).values


@pytest.mark.parametrize("opset", [18, 20, 21, 22])
def test_an_export_of_the_newer_exporter_agrees_with_onnxruntime(opset: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "net.onnx"
    torch.onnx.export(
        Network().eval(), (torch.zeros(1, 3, 16, 24),), str(path), dynamo=True, opset_version=opset, verbose=False
    )
    image = np.random.default_rng(0).random((1, 3, 16, 24), np.float32)
    with torch.inference_mode():
        outputs = pytree.tree_leaves(converted(path)(torch.from_numpy(image)))
    expected = by_onnxruntime(path, image)
    assert len(outputs) == len(expected) == 2
    for output, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(output.numpy(), reference, atol=1e-5)
