"""Runs the branches of a stage on several streams, for a capture: one graph then contains them in parallel."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.green_contexts import further_streams
from multi_dnn_ros.graph.branches import SerialGraphError, device_operations
from multi_dnn_ros.graph.nodes import attribute
from multi_dnn_ros.graph.planned_graph import PlannedGraph, arguments
from multi_dnn_ros.graph.stream_plan import StreamPlan, plan_streams


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
    """A traced graph whose operations are launched on several streams, according to a plan.

    forward() takes and returns what the graph does; on return stream 0 waits for all others. Memory is safe under a
    caching allocator that reuses freed memory on the stream that it was allocated on: a tensor that an operation on
    another stream reads stays allocated until the streams have joined. A tensor that only its own stream reads is freed
    after its last use.
    """

    def __init__(self, graph_module: fx.GraphModule, plan: StreamPlan, streams: BranchStreams) -> None:
        """Parameters are read here, so the graph must already be on its device."""
        super().__init__()
        self.plan = plan
        self._planned = PlannedGraph(graph_module, plan)
        self._streams = streams
        self._uses = {node: len(node.users) for node in graph_module.graph.nodes}

    def forward(self, *carried: torch.Tensor) -> Tensors:
        """The graph's outputs; see the class."""
        streams, planned = self._streams, self._planned
        streams.begin()
        start = streams.signal(0)
        run = _Run(planned, carried, self._uses)
        for node in planned.views_of_inputs:
            run.call(node, 0)
        events: dict[str, Any] = {}
        entered = {0}
        for operation in planned.operations:
            step = operation.step
            if step.stream not in entered and not step.waits:
                streams.wait(step.stream, start)
            entered.add(step.stream)
            for source in step.waits:
                streams.wait(step.stream, events[source])
            with streams.on(step.stream):
                for node in (operation.node, *operation.views):
                    run.call(node, step.stream)
            if step.signals:
                events[step.name] = streams.signal(step.stream)
        for name in self.plan.joins:
            streams.wait(0, events[name])
        return planned.results(run.values)


class _Run:
    """The values of one run of a graph, and which of them must stay allocated until its end."""

    def __init__(self, planned: PlannedGraph, carried: Tensors, uses: dict[fx.Node, int]) -> None:
        self._planned = planned
        self.values = planned.values(carried)
        self._left = dict(uses)
        self._stream_of: dict[int, int] = {}  # by address of the storage: the stream that it was allocated on
        self._held: list[torch.Tensor] = []

    def call(self, node: fx.Node, stream: int) -> None:
        """Compute the node's value, launching on `stream`, and drop the values that are not needed any more."""
        read = {_address(tensor): tensor for tensor in _tensors(arguments(node, self.values))}
        # Inputs and parameters were not allocated here; the caller keeps them, and holding them costs nothing.
        self._held.extend(tensor for address, tensor in read.items() if self._stream_of.get(address, -1) != stream)
        self._planned.compute(node, self.values)
        for tensor in _tensors(self.values[node]):
            if _address(tensor) not in read:  # otherwise it shares the memory of a tensor that was read
                self._stream_of[_address(tensor)] = stream
        for source in node.all_input_nodes:
            self._left[source] -= 1
            if not self._left[source] and source.op not in ("placeholder", "get_attr"):
                del self.values[source]


def branched(stage: nn.Module, streams: int, make_streams: Callable[[int], BranchStreams]) -> nn.Module | None:
    """A copy of the stage that runs its branches on at most `streams` streams and shares its tensors.

    make_streams: called with the number of streams that are used. Returns None if no branch of the stage is worth a
    second stream. Raises SerialGraphError if its operations must run in order or are unknown.
    """
    graph_module = only_graph(stage)
    plan = plan_streams(device_operations(graph_module), streams)
    if plan.streams == 1:
        return None
    return with_graph(stage, graph_module, BranchedGraph(graph_module, plan, make_streams(plan.streams)))


def with_graph(stage: nn.Module, graph_module: fx.GraphModule, replacement: nn.Module) -> nn.Module:
    """A copy of the stage that shares its tensors and has `replacement` in place of its graph."""
    shared: dict[int, Any] = {id(each): each for each in itertools.chain(stage.parameters(), stage.buffers())}
    shared[id(graph_module)] = replacement
    return copy.deepcopy(stage, shared)


def streams_used(stage: object) -> int:
    """Number of streams that a stage uses: above 1 for what `branched` returned."""
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


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
