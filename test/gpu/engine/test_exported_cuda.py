"""A .pt2 file that was exported on a GPU. CPU twin: test/models/test_exported_archive.py."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.settings.schema import DnnConfig


class Shifted(nn.Module):
    """A parameter, a buffer, and a tensor that forward makes on the device of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 6, 8, stride=8)
        self.register_buffer("scale", torch.full((6, 1), 0.5))

    def forward(self, image: Tensor) -> Tensor:
        rows = self.layer(image).flatten(2) * self.scale
        return rows + torch.arange(rows.shape[2], device=image.device)


def test_a_network_that_was_exported_on_a_gpu_is_loaded_on_the_cpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, image = Shifted().eval(), torch.rand(1, 3, 32, 48)
    expected = network(image)
    file = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(network.cuda(), (image.cuda(),)), file)
    dnn = load_dnn("x", DnnConfig(role="object", model=str(file), decoder="yolo", labels=["car", "truck"]))
    with torch.inference_mode():
        outputs = dnn.module(image)
    assert outputs.device.type == "cpu"
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-4)
