"""Merged siblings in captured graphs. CPU twins: test/backends/test_merged_siblings.py, test/graph/test_siblings.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gpu_stages import EXAMPLE, GPU
from torch import nn

from multi_dnn_ros.backends import run_stages
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.graph.cut import GraphStage, cut_module
from multi_dnn_ros.graph.siblings import find_siblings
from multi_dnn_ros.pipeline.choices import choose_backend


class Towers(nn.Module):
    """Three convolutions with ReLU that read the same tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(nn.Conv2d(3, channels, 3, padding=1) for channels in (8, 16, 24))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.relu(tower(image)).exp() for tower in self.towers], 1)


def stages() -> list[GraphStage]:
    torch.manual_seed(0)
    return cut_module(Towers().eval(), EXAMPLE, 1)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 1e-2)])
@pytest.mark.parametrize("setting", ["measured", "always"])
def test_captured_merged_siblings_agree_with_the_separate_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, precision: str, tolerance: float
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (stage,) = stages()
    assert len(find_siblings(stage.graph)) == 1
    image = noise_like(tuple(tensor.cpu() for tensor in EXAMPLE))
    with torch.inference_mode():
        expected = stage(image)
        backend = choose_backend("cuda_graph", GPU, precision, merge_siblings=setting)
        results = run_stages(backend.prepare(stages(), EXAMPLE, GPU), tuple(tensor.to(GPU) for tensor in image))
        check_agreement(tuple(result.cpu() for result in results), expected, 2 * tolerance)
    assert bool(list((tmp_path / "multi_dnn_ros").rglob("siblings/*.json"))) == (setting == "measured")
