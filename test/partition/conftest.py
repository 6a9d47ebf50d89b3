"""A tiny network in files, and processes of units that start in a tenth of a second."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn


class Means(nn.Module):
    """(N, 3, 8, 8) -> (N, 3): the means of the channels; their logarithms if `logarithm` is set."""

    def __init__(self, *, logarithm: bool = False) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, -3.0]))
        self.logarithm = logarithm

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        means = images.mean((2, 3)) * self.scale
        return means.log() if self.logarithm else means


def _saved(path: Path, network: nn.Module) -> str:
    batch = torch.export.Dim("batch", min=1, max=4096)
    torch.export.save(
        torch.export.export(network.eval(), (torch.zeros(2, 3, 8, 8),), dynamic_shapes=({0: batch},)), path
    )
    return str(path)


@pytest.fixture(scope="session")
def means(tmp_path_factory: pytest.TempPathFactory) -> str:
    """File of a network that computes the means of the channels, the second doubled and the third times -3."""
    return _saved(tmp_path_factory.mktemp("networks") / "means.pt2", Means())


@pytest.fixture(scope="session")
def logarithms(tmp_path_factory: pytest.TempPathFactory) -> str:
    """File of a network with NaN among its outputs."""
    return _saved(tmp_path_factory.mktemp("networks") / "logarithms.pt2", Means(logarithm=True))


@pytest.fixture(scope="module", autouse=True)
def _forks(forked_spawns: None) -> None:
    """Unit processes are forks of one that has imported PyTorch."""
