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
from multi_dnn_ros.backends.green_contexts import streams_beside
from multi_dnn_ros.graph.branches import DeviceOperation, SerialGraphError, device_operations, origins
from multi_dnn_ros.graph.nodes import attribute
from multi_dnn_ros.graph.stream_plan import StreamPlan, plan_streams


class Lanes(Protocol):
    """Several streams, numbered from 0. Lane 0 is the stream that the stage is called on."""

    def begin(self) -> None:
        """Before each run: make the calling thread's current stream lane 0."""

    def on(self, lane: int) -> AbstractContextManager[Any]:
        """What is launched inside the context goes to `lane`."""

    def signal(self, lane: int) -> Any:
        """An event after all that was launched on `lane` so far."""

    def wait(self, lane: int, event: Any) -> None:
        """What is launched on `lane` from now on waits for `event`."""


class StreamLanes:
    """CUDA streams on the same SMs as `stream`, on which the stage will be captured. count: of lanes, with lane 0."""

    def __init__(self, stream: torch.cuda.Stream, count: int) -> None:
        self._device = stream.device
        self._beside = streams_beside(stream, stream.device, count - 1)
        self._streams: list[torch.cuda.Stream] = []

    def begin(self) -> None:
        self._streams = [torch.cuda.current_stream(self._device), *self._beside]

    def on(self, lane: int) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._streams[lane])

    def signal(self, lane: int) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(self._streams[lane])
        return event

    def wait(self, lane: int, event: torch.cuda.Event) -> None:
        self._streams[lane].wait_event(event)


class BranchedGraph(nn.Module):
    """A traced graph whose operations are launched on several lanes, as a plan says.

    forward() takes and returns what the graph does; on return lane 0 waits for all other lanes. Memory is safe under a
    caching allocator that reuses freed memory on the stream that it was allocated on: a tensor that an operation on
    another lane reads stays allocated until the lanes have joined. A tensor that only its own lane reads is freed after
    the last use.
    """

    def __init__(self, graph_module: fx.GraphModule, plan: StreamPlan, lanes: Lanes) -> None:
        """Parameters are read here, so the graph must already be on its device."""
        super().__init__()
        self.plan = plan
        self._graph_module = graph_module  # keeps the parameters alive
        self._lanes = lanes
        nodes = list(graph_module.graph.nodes)
        self._inputs = [node for node in nodes if node.op == "placeholder"]
        self._results: Any = graph_module.graph.output_node().args[0]
        self._constants = {node: attribute(graph_module, node) for node in nodes if node.op == "get_attr"}
        origin = origins(graph_module.graph)
        views: dict[fx.Node, list[fx.Node]] = {node: [] for node in origin.values()}
        for node, source in origin.items():
            if node is not source:
                views[source].append(node)
        self._views_of_inputs = [node for source in (*self._inputs, *self._constants) for node in views.get(source, ())]
        by_name = {node.name: node for node in origin}
        self._steps = [(step, by_name[step.name], tuple(views[by_name[step.name]])) for step in plan.steps]
        self._uses = {node: len(node.users) for node in nodes}

    def forward(self, *carried: torch.Tensor) -> Tensors:
        """The graph's outputs; see the class."""
        lanes = self._lanes
        lanes.begin()
        start = lanes.signal(0)
        run = _Run({**self._constants, **dict(zip(self._inputs, carried, strict=True))}, self._uses)
        for node in self._views_of_inputs:
            run.call(node, 0)
        events: dict[str, Any] = {}
        entered = {0}
        for step, node, views in self._steps:
            if step.stream not in entered and not step.waits:
                lanes.wait(step.stream, start)
            entered.add(step.stream)
            for source in step.waits:
                lanes.wait(step.stream, events[source])
            with lanes.on(step.stream):
                run.call(node, step.stream)
                for view in views:
                    run.call(view, step.stream)
            if step.signals:
                events[step.name] = lanes.signal(step.stream)
        for name in self.plan.joins:
            lanes.wait(0, events[name])
        outputs: Tensors = fx.node.map_arg(self._results, run.values.__getitem__)
        return outputs


class _Run:
    """The values of one run of a graph, and which of them must stay allocated until its end."""

    def __init__(self, values: dict[fx.Node, Any], uses: dict[fx.Node, int]) -> None:
        self.values = values
        self._left = dict(uses)
        self._lane_of: dict[int, int] = {}  # by address of the storage: the lane that it was allocated on
        self._held: list[torch.Tensor] = []

    def call(self, node: fx.Node, lane: int) -> None:
        """Compute the node's value, launching on `lane`, and drop the values that are not needed any more."""
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self.values.__getitem__)
        read = {_address(tensor): tensor for tensor in _tensors((args, kwargs))}
        # Inputs and parameters were not allocated here; the caller keeps them, and holding them costs nothing.
        self._held.extend(tensor for address, tensor in read.items() if self._lane_of.get(address, -1) != lane)
        assert callable(node.target)
        result = self.values[node] = node.target(*args, **kwargs)
        for tensor in _tensors(result):
            if _address(tensor) not in read:  # otherwise it shares the memory of what was read
                self._lane_of[_address(tensor)] = lane
        for source in node.all_input_nodes:
            self._left[source] -= 1
            if not self._left[source] and source.op == "call_function":
                del self.values[source]


def branched(stage: nn.Module, streams: int, make_lanes: Callable[[int], Lanes]) -> nn.Module | None:
    """A copy of the stage that runs its branches on at most `streams` lanes and shares its tensors.

    make_lanes: called with the number of lanes that are used. None if the stage has no branches that are worth a second
    lane. Raises SerialGraphError if its operations must run in order or are unknown.
    """
    graph_module = _only_graph(stage)
    plan = plan_streams(device_operations(graph_module), streams)
    if plan.streams == 1:
        return None
    own = BranchedGraph(graph_module, plan, make_lanes(plan.streams))
    shared: dict[int, Any] = {id(each): each for each in itertools.chain(stage.parameters(), stage.buffers())}
    shared[id(graph_module)] = own
    return copy.deepcopy(stage, shared)


def streams_used(stage: object) -> int:
    """Number of streams that a stage uses: above 1 for what `branched` returned."""
    parts = stage.modules() if isinstance(stage, nn.Module) else ()
    return max((part.plan.streams for part in parts if isinstance(part, BranchedGraph)), default=1)


def operations_of(stage: nn.Module) -> tuple[DeviceOperation, ...]:
    """The operations of a stage that launch work. Raises SerialGraphError as `branched`."""
    return device_operations(_only_graph(stage))


def graph_key(stage: nn.Module) -> tuple[str, ...]:
    """What determines the time of a stage besides the device: its operations, arguments, shapes and number formats."""
    graph_module = _only_graph(stage)
    lines = []
    for node in graph_module.graph.nodes:
        value = attribute(graph_module, node) if node.op == "get_attr" else node.meta.get("val")
        formats = [(tuple(each.shape), str(each.dtype)) for each in _tensors(value)]
        target = "" if node.op == "get_attr" else str(node.target)
        lines.append(f"{node.name} {node.op} {target} {node.args} {node.kwargs} {formats}")
    return tuple(lines)


def _only_graph(stage: nn.Module) -> fx.GraphModule:
    found = [part for part in stage.modules() if isinstance(part, fx.GraphModule)]
    if len(found) != 1:
        raise SerialGraphError(f"it consists of {len(found)} traced graphs instead of one")
    return found[0]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    leaves: Sequence[Any] = pytree.tree_leaves(values)
    return (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
