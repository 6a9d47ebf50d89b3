"""Runs the branches of a stage on several streams, for a capture: one graph then contains them in parallel."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.green_contexts import further_streams
from multi_dnn_ros.graph.branches import SerialGraphError
from multi_dnn_ros.graph.stream_plan import StreamPlan
from multi_dnn_ros.models.trace import attribute


class BranchStreams(Protocol):
    """Several streams, numbered from 0. Stream 0 is the one that the stage is called on."""

    def begin(self) -> None:
        """Before each run: make the calling thread's current stream number 0."""

    def on(self, stream: int) -> AbstractContextManager[Any]:
        """Context manager: what is launched inside it goes to `stream`."""

    def signal(self, stream: int) -> Any:
        """Return an event that follows everything launched on `stream` so far."""

    def wait(self, stream: int, event: Any) -> None:
        """Make everything launched on `stream` from now on wait for `event`."""


class CudaStreams:
    """CUDA streams on the same SMs as `stream`, on which the stage will be captured. count: includes stream 0."""

    def __init__(self, stream: torch.cuda.Stream, count: int) -> None:
        self._device = stream.device
        self._further = further_streams(stream, stream.device, count - 1)
        self._streams: list[torch.cuda.Stream] = []

    def begin(self) -> None:
        self._streams = [torch.cuda.current_stream(self._device), *self._further]

    def on(self, stream: int) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._streams[stream])

    def signal(self, stream: int) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(self._streams[stream])
        return event

    def wait(self, stream: int, event: torch.cuda.Event) -> None:
        self._streams[stream].wait_event(event)


class BranchedGraph(nn.Module):
    """A graph of segments that are launched on several streams, according to a plan (see split_into_segments).

    forward() takes and returns what the graph does; on return stream 0 waits for all others. Memory is safe under a
    caching allocator that reuses freed memory on the stream that it was allocated on: what segments pass on stays
    allocated until the streams have joined.
    """

    def __init__(self, graph: fx.GraphModule, plan: StreamPlan, streams: BranchStreams) -> None:
        super().__init__()
        self.graph = graph
        self.plan = plan
        self._streams = streams

    def forward(self, *carried: torch.Tensor) -> Tensors:
        """The graph's outputs; see the class."""
        run = _Run(self.graph, self.plan, self._streams)
        results: Tensors = run.run(*carried)
        for name in self.plan.joins:
            self._streams.wait(0, run.events[name])
        return results


class _Run(fx.Interpreter):
    """One run of the graph: keeps all values, and launches each segment on its stream after what it waits for."""

    def __init__(self, graph: fx.GraphModule, plan: StreamPlan, streams: BranchStreams) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.extra_traceback = False
        self.events: dict[str, Any] = {}
        self._steps = {step.name: step for step in plan.steps}
        self._entered = {0}
        self._streams = streams
        streams.begin()
        self._start = streams.signal(0)

    def run_node(self, n: fx.Node) -> Any:
        if n.op != "call_module":
            return super().run_node(n)
        step, streams = self._steps[n.name], self._streams
        if step.stream not in self._entered and not step.waits:
            streams.wait(step.stream, self._start)
        self._entered.add(step.stream)
        for source in step.waits:
            streams.wait(step.stream, self.events[source])
        with streams.on(step.stream):
            result = super().run_node(n)
        if step.signals:
            self.events[step.name] = streams.signal(step.stream)
        return result


def with_graph(stage: nn.Module, graph_module: fx.GraphModule, replacement: nn.Module) -> nn.Module:
    """A copy of the stage that shares its tensors and has `replacement` in place of its graph."""
    shared: dict[int, Any] = {id(each): each for each in itertools.chain(stage.parameters(), stage.buffers())}
    shared[id(graph_module)] = replacement
    return copy.deepcopy(stage, shared)


def streams_used(stage: object) -> int:
    """Number of streams that a stage uses: above 1 for one with branches."""
    parts = stage.modules() if isinstance(stage, nn.Module) else ()
    return max((part.plan.streams for part in parts if isinstance(part, BranchedGraph)), default=1)


def graph_key(stage: nn.Module) -> tuple[str, ...]:
    """What determines the time of a stage besides the device: its operations, arguments, shapes and number formats."""
    graph_module = only_graph(stage)
    lines = []
    for node in graph_module.graph.nodes:
        value = attribute(graph_module, node) if node.op == "get_attr" else node.meta.get("val")
        formats = [(tuple(each.shape), str(each.dtype)) for each in _tensors(value)]
        target = "" if node.op == "get_attr" else str(node.target)
        lines.append(f"{node.name} {node.op} {target} {node.args} {node.kwargs} {formats}")
    return tuple(lines)


def only_graph(stage: nn.Module) -> fx.GraphModule:
    """The traced graph of a stage. Raises SerialGraphError if it has none or several."""
    found = [part for part in stage.modules() if isinstance(part, fx.GraphModule)]
    if len(found) != 1:
        raise SerialGraphError(f"it consists of {len(found)} traced graphs instead of one")
    return found[0]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    leaves: Sequence[Any] = pytree.tree_leaves(values)
    return (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
