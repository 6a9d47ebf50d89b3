"""Reads the profiler's events of one training step: times of layers, messages between processes, exposed communication.

A layer is a module. What a module computes between the calls of its submodules is its own. In the backward pass an
autograd node belongs to the layer in whose forward pass it was created, which its sequence number tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch._C._autograd import DeviceType
from torch.profiler import record_function

#: Number of what belongs to no module, such as the loss.
OUTSIDE = -1
_LAYER = "layer:"
_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = "Optimizer.step"

#: Begin and end in milliseconds.
Span = tuple[float, float]


@dataclass(frozen=True)
class StepTrace:
    """One step. forward_ms, backward_ms: by number of the layer, see layer_ranges(). messages: the all-reduces, in the
    order of their launches. exposed_ms: time in which messages were under way and nothing was computed.

    On a GPU the times of layers are those of their kernels.
    """

    forward_ms: dict[int, float]
    backward_ms: dict[int, float]
    optimizer_ms: float
    messages: tuple[Span, ...]
    exposed_ms: float

    @property
    def sum_ms(self) -> float:
        """Layers, optimizer and exposed communication."""
        layers_ms = sum(self.forward_ms.values()) + sum(self.backward_ms.values())
        return layers_ms + self.optimizer_ms + self.exposed_ms


@contextmanager
def layer_ranges(network: nn.Module) -> Iterator[None]:
    """Name the forward pass of each module, in the order of `modules()`, for the profiler."""
    ranges: list[Any] = []
    handles = []

    for number, module in enumerate(network.modules()):

        def enter(module: nn.Module, inputs: Any, name: str = f"{_LAYER}{number}") -> None:
            ranges.append(record_function(name))
            ranges[-1].__enter__()

        def leave(module: nn.Module, inputs: Any, outputs: Any) -> None:
            ranges.pop().__exit__(None, None, None)

        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def read_trace(events: Iterable[Any], on_gpu: bool) -> StepTrace:
    """events: of torch.profiler, for one step inside layer_ranges()."""
    found = sorted(events, key=lambda event: (event.time_range.start, -event.time_range.end))
    host = [event for event in found if event.device_type == DeviceType.CPU and not event.is_async]
    device = [event for event in found if event.device_type != DeviceType.CPU and not event.is_user_annotation]

    def ms(event: Any) -> float:
        return float(event.device_time_total if on_gpu else event.time_range.elapsed_us()) / 1e3

    forward: dict[int, float] = defaultdict(float)
    layer_of: dict[int, int] = {}  # by sequence number
    stack: list[tuple[int, float]] = []  # (layer, end) of the modules that are running
    for event in host:
        while stack and stack[-1][1] <= event.time_range.start:
            stack.pop()
        if event.name.startswith(_LAYER):
            if stack:
                forward[stack[-1][0]] -= ms(event)
            layer = int(event.name.removeprefix(_LAYER))
            forward[layer] += ms(event)
            stack.append((layer, event.time_range.end))
        elif event.scope == 0 and event.sequence_nr >= 0 and not event.name.startswith(_BACKWARD):
            # Of several operations with a number, the last one has created the node.
            layer_of[event.sequence_nr] = stack[-1][0] if stack else OUTSIDE
    backward: dict[int, float] = defaultdict(float)
    layer = OUTSIDE
    nodes = [event for event in host if event.name.startswith(_BACKWARD)]
    for event in nodes:  # one that accumulates a gradient has no number, and follows the node of its layer
        layer = layer_of.get(event.sequence_nr, layer)
        backward[layer] += ms(event)
    optimizer = [event for event in host if event.name.startswith(_OPTIMIZER)]
    if on_gpu:
        messages = [_span(event) for event in device if "nccl" in event.name and "AllReduce" in event.name]
        computing = [_span(event) for event in device if "nccl" not in event.name]
    else:
        messages = [_span(event) for event in found if event.name == "gloo:all_reduce"]
        computing = [_span(event) for event in host if event.name.startswith((_LAYER, _BACKWARD, _OPTIMIZER))]
    return StepTrace(dict(forward), dict(backward), sum(map(ms, optimizer)), tuple(messages),
                     uncovered_ms(messages, computing))  # fmt: skip


def uncovered_ms(spans: Sequence[Span], by: Sequence[Span]) -> float:
    """Length of the union of `spans` outside the union of `by`."""
    return _length([*spans, *by]) - _length(by)


def _length(spans: Sequence[Span]) -> float:
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _span(event: Any) -> Span:
    return event.time_range.start / 1e3, event.time_range.end / 1e3
