"""Networks and clocks with known times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import nn

from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.torchscript import TorchScript
from multi_dnn_ros.planning.device import DeviceLimits, device_name
from multi_dnn_ros.planning.samples import LayerCounts, Load, Setting
from multi_dnn_ros.planning.timing import Target

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def few_trees() -> Iterator[None]:
    """Enough for laws as simple as these; each tree takes a larger step, so that together they go as far."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("multi_dnn_ros.profiling.learn._TREES", 12)
        patch.setattr("multi_dnn_ros.profiling.learn._RATE", 0.2)
        yield


def target(backend: str = "eager", rounds: int = 4) -> Target:
    return Target(CPU, backend, {"eager": Eager, "torchscript": TorchScript}[backend], rounds=rounds)


def limits() -> DeviceLimits:
    """1 GFLOP/s, 1 GB/s: a million operations or bytes take a millisecond."""
    return DeviceLimits(
        name=device_name(target()), kind="cpu", precision="auto", threads=1, flops_per_s=1e9, bytes_per_s=1e9
    )


class Small(nn.Module):
    """A few layers of different kinds, with a branch and views."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.point = nn.Conv2d(channels, channels, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.last = nn.Linear(channels, 5)
        self.eval()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = torch.relu(self.norm(self.first(image)))
        second = self.point(self.depthwise(first)) + first
        return self.last(torch.flatten(self.pool(second), 1))


SHAPE = (1, 3, 8, 8)


class FakeClock:
    """Returns fixed gaps by number of marks: `by_count` maps it to milliseconds between marks."""

    def __init__(self, by_count: dict[int, Sequence[float]]) -> None:
        self._by_count = by_count
        self._count = 0
        self.marked: list[int] = []

    def prepare(self, count: int) -> None:
        self._count = count
        self.marked = []

    def mark(self, index: int) -> None:
        self.marked.append(index)

    def gaps_ms(self) -> list[float]:
        assert self.marked[-self._count :] == list(range(self._count))  # every index once, in order
        return list(self._by_count[self._count])


#: A machine of those limits with two cores.
SETTING = Setting(limits().name, "eager", "auto", 1, 2, 0, 1e9, 1e9)


def law(counts: LayerCounts, load: Load) -> float:
    """Arithmetic at a third of the peak, memory at half of it, 20 us a launch; compute loads hold arithmetic up."""
    moved = counts.bytes_read + counts.bytes_written
    over = max(0, load.level - 1) / 2 if load.kind == "compute" else 0.0
    return 3e3 * counts.flops / 1e9 * (1.0 + 2.0 * over) + 2e3 * moved / 1e9 + 0.02
