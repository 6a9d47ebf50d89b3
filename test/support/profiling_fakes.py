"""Networks and machines with known times."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.onnxruntime_backend import OnnxRuntime
from multi_dnn_ros.models.layers import Layer, LayerWork
from multi_dnn_ros.planning.layer_chain import Traced, trace_on_cpu
from multi_dnn_ros.planning.timing import Target
from multi_dnn_ros.profiling.limits import DeviceLimits
from multi_dnn_ros.profiling.predictor import Linear, Load, Predictor, trained_ranges
from multi_dnn_ros.profiling.samples import Machine

CPU = torch.device("cpu")
SHAPE = (1, 3, 8, 8)
#: conv, relu, depthwise, 1x1, add, pool (with its flatten), linear.
LAYERS = 7


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


def target(backend: str = "eager", rounds: int = 4) -> Target:
    return Target(CPU, backend, {"eager": Eager, "onnxruntime": OnnxRuntime}[backend], rounds=rounds)


def traced(module: nn.Module | None = None) -> Traced:
    """A network on random images of SHAPE."""
    return trace_on_cpu(module or Small(), (torch.rand(SHAPE),))


def limits() -> DeviceLimits:
    """1 GFLOP/s, 1 GB/s: a million operations or bytes take a millisecond."""
    return DeviceLimits(target().device_name, 1e9, 1e9)


def machine(**changes: object) -> Machine:
    """One of those limits, on which one load thread runs beside the layer."""
    values = {
        "device": target().device_name, "backend": "eager", "versions": "torch 2", "threads": 1, "spare": 1,
        "flops_per_s": 1e9, "bytes_per_s": 1e9,
    }  # fmt: skip
    return Machine.model_validate({**values, **changes})


def taught(layers: Sequence[Layer], ms: float = 2.0, **changes: object) -> Predictor:
    """Predicts `ms` for every layer of these kinds, with and without load."""
    ranges = trained_ranges([layer.work for layer in layers])
    weights = [0.0, 0.0, ms, *[0.0] * 18]
    predictor = Predictor(
        **machine().model_dump(exclude={"versions"}), ranges=ranges, loads={"dnn": 8},
        model=Linear(weights=dict.fromkeys(ranges, weights)),
    )  # fmt: skip
    return predictor.model_copy(update=changes)


def law(work: LayerWork, load: Load) -> float:
    """Milliseconds: arithmetic at a third of the peak, memory at half of it, 20 us a launch. Loads of kind compute that
    the layer waits for hold its arithmetic up.
    """
    waiting = max(0, load.level - 1) if load.kind == "compute" else 0
    return 3e3 * work.flops / 1e9 * (1.0 + waiting) + 2e3 * work.moved / 1e9 + 0.02


def chain_of(ms: Sequence[float]) -> Callable[..., Callable[[], list[float]]]:
    """Replaces make_layer_chain: every run takes these milliseconds."""
    return lambda *given: lambda: list(ms)
