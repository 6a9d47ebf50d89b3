"""Runs the branches of a stage on several streams, for a capture: one graph then contains them in parallel."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx, nn

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.agreement import noise_like
from multi_dnn_ros.backends.branches import SerialGraphError, StreamPlan, origins, plan_branches
from multi_dnn_ros.backends.eager import compiled_or_eager
from multi_dnn_ros.backends.green_contexts import further_streams
from multi_dnn_ros.models.trace import attribute, is_selection


class CudaStreams:
    """CUDA streams on the same SMs as `stream`, on which the stage will be captured. count: includes stream 0."""

    def __init__(self, stream: torch.cuda.Stream, count: int) -> None:
        self._device = stream.device
        self._further = further_streams(stream, stream.device, count - 1)
        self._streams: list[torch.cuda.Stream] = []

    def begin(self) -> None:
        """Before each run: make the calling thread's current stream number 0."""
        self._streams = [torch.cuda.current_stream(self._device), *self._further]

    def on(self, stream: int) -> AbstractContextManager[Any]:
        """Context manager: what is launched inside it goes to `stream`."""
        return torch.cuda.stream(self._streams[stream])

    def signal(self, stream: int) -> Any:
        """An event that follows everything launched on `stream` so far."""
        event = torch.cuda.Event()
        event.record(self._streams[stream])
        return event

    def wait(self, stream: int, event: Any) -> None:
        """Make everything launched on `stream` from now on wait for `event`."""
        self._streams[stream].wait_event(event)


class BranchedGraph(nn.Module):
    """A traced graph as segments on several streams; forward() takes and returns what the graph does.

    graph_module: of :func:`multi_dnn_ros.models.trace.trace`; all tensors are shared with it. Raises SerialGraphError
    if a segment would have to pass on something other than tensors.

    On return stream 0 waits for all others. Memory is safe under a caching allocator that reuses freed memory on the
    stream that it was allocated on: what segments pass on stays allocated until the streams have joined.
    """

    def __init__(self, graph_module: fx.GraphModule, plan: StreamPlan, streams: CudaStreams) -> None:
        super().__init__()
        self.plan = plan
        self._streams = streams
        nodes = graph_module.graph
        self._takes = [node.name for node in nodes.find_nodes(op="placeholder")]
        returned: Any = nodes.output_node().args[0]
        self._returns = [node.name for node in returned]
        self.segments = nn.ModuleList()
        self._passed: list[tuple[list[str], list[str]]] = []  # what each segment takes and returns
        for graph, inputs, outputs in _split(graph_module, plan):
            attributes = {str(node.target): attribute(graph_module, node) for node in graph.find_nodes(op="get_attr")}
            self.segments.append(fx.GraphModule(attributes, graph, class_name="SegmentGraph"))
            self._passed.append(([node.name for node in inputs], [node.name for node in outputs]))

    def forward(self, *carried: torch.Tensor) -> Tensors:
        """The graph's outputs; see the class."""
        streams, entered = self._streams, {0}
        streams.begin()
        start = streams.signal(0)
        events: dict[int, Any] = {}
        values = dict(zip(self._takes, carried, strict=True))
        for index, segment in enumerate(self.plan.segments):
            if segment.stream not in entered and not segment.waits:
                streams.wait(segment.stream, start)
            entered.add(segment.stream)
            for source in segment.waits:
                streams.wait(segment.stream, events[source])
            with streams.on(segment.stream):
                self._call(index, values)
            if segment.signals:
                events[index] = streams.signal(segment.stream)
        for index in self.plan.joins:
            streams.wait(0, events[index])
        self._call(len(self.plan.segments), values)
        return tuple(values[name] for name in self._returns)

    def replace_segments(
        self, replacement: Callable[[int, nn.Module, Tensors], nn.Module], *carried: torch.Tensor
    ) -> None:
        """Replace the segments in order, each for the inputs that the ones before it leave, on the current stream.

        replacement: takes the index of a segment, the segment and its inputs.
        """
        values = dict(zip(self._takes, carried, strict=True))
        for index in range(len(self.plan.segments)):
            tensors = tuple(values[name] for name in self._passed[index][0])
            self.segments[index] = replacement(index, self.segments[index], tensors)
            self._call(index, values)

    def _call(self, index: int, values: dict[str, torch.Tensor]) -> None:
        inputs, outputs = self._passed[index]
        results = self.segments[index](*(values[name] for name in inputs))
        values.update(zip(outputs, results, strict=True))


def with_branches(
    stage: nn.Module, streams: int, make_streams: Callable[[int], CudaStreams], *, fuses: bool = False
) -> nn.Module | None:
    """A copy of the stage with its branches on at most `streams` streams; it shares the stage's tensors.

    make_streams: called with the number of streams that are used. fuses: plan for segments that will be compiled.
    Returns None if no branch is worth a second stream. Raises SerialGraphError if the operations of the stage must run
    in order or are unknown.
    """
    graphs = [part for part in stage.modules() if isinstance(part, fx.GraphModule)]
    if len(graphs) != 1:
        raise SerialGraphError(f"it consists of {len(graphs)} traced graphs instead of one")
    plan = plan_branches(graphs[0], streams, fuses=fuses)
    if plan.streams == 1:
        return None
    shared: dict[int, Any] = {id(each): each for each in itertools.chain(stage.parameters(), stage.buffers())}
    shared[id(graphs[0])] = BranchedGraph(graphs[0], plan, make_streams(plan.streams))
    return copy.deepcopy(stage, shared)


def branches_of(stage: object) -> BranchedGraph | None:
    """The part of a stage that has branches; None if it runs on one stream."""
    parts = stage.modules() if isinstance(stage, nn.Module) else ()
    return next((part for part in parts if isinstance(part, BranchedGraph)), None)


def compile_segments(
    title: str,
    stage: nn.Module,
    inputs: Tensors,
    compile_segment: Callable[[Stage, Tensors], Stage],
    progress: Callable[[str], None],
) -> None:
    """Compile the segments of a stage with branches, in place.

    title: names the stage in messages. inputs: examples, on the device. compile_segment: returns a compiled function
    for a segment and example inputs. A segment for which it raises an exception runs uncompiled; only running out of
    memory is an error. progress: called with a line for each segment.
    """
    branched = branches_of(stage)
    assert branched is not None
    count, begin = len(branched.plan.segments), time.perf_counter()

    def compiled(index: int, segment: nn.Module, tensors: Tensors) -> nn.Module:
        name = f"segment {index + 1} of {count} of {title}"
        progress(f"compiling {name}")
        return compiled_or_eager(
            name, "Inductor", lambda: _Function(compile_segment(lambda given: segment(*given), tensors)), segment
        )

    carried: list[Tensors] = []
    hook = branched.register_forward_pre_hook(lambda _, tensors: carried.append(tensors))
    with torch.inference_mode(False), torch.no_grad():  # tensors of inference mode cannot be traced
        stage(tuple(tensor.clone() for tensor in noise_like(inputs)))
        hook.remove()
        branched.replace_segments(compiled, *carried[0])
    progress(f"compiled {count} segments of {title} after {time.perf_counter() - begin:.1f} s")


class _Function(nn.Module):
    """A compiled segment in the place of its graph."""

    def __init__(self, function: Stage) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        return self._function(tensors)


def _split(graph_module: fx.GraphModule, plan: StreamPlan) -> list[tuple[fx.Graph, list[fx.Node], list[fx.Node]]]:
    """For each segment: its graph, and the nodes of `graph_module` that it takes and returns, all of them tensors.

    A segment contains the parameters that it reads, and computes the views of other segments' results that it reads.
    One more graph at the end returns the parameters, and the views of inputs and parameters, that the graph returns.

    torch.fx.passes.split_module is not used, because it passes lists, views and parameters from part to part.
    """
    nodes = graph_module.graph
    origin = origins(nodes)
    segment_of = {name: index for index, segment in enumerate(plan.segments) for name in segment.operations}
    # The segment that computes a node, or the result that it is a view of; for all others the graph at the end.
    home = {node: segment_of.get(source.name, len(plan.segments)) for node, source in origin.items()}
    needed = dict.fromkeys(node for node in nodes.output_node().all_input_nodes if node.op != "placeholder")
    found: list[tuple[fx.Graph, list[fx.Node], list[fx.Node]]] = []
    for index in reversed(range(len(plan.segments) + 1)):  # what reads its results has been split before
        outputs = [node for node in needed if home[node] == index]
        inputs, inside = _contents(index, outputs, origin, home)
        needed |= dict.fromkeys(node for node in inputs if node.op != "placeholder")
        graph = fx.Graph()
        values = {node: graph.placeholder(node.name) for node in inputs}
        for node in inputs:
            values[node].meta = dict(node.meta)
        for node in nodes.nodes:
            if node in inside:
                values[node] = graph.node_copy(node, values.__getitem__)
        graph.output(tuple(values[node] for node in outputs))
        found.insert(0, (graph, inputs, outputs))
    return found


def _contents(
    index: int, outputs: Sequence[fx.Node], origin: Mapping[fx.Node, fx.Node], home: Mapping[fx.Node, int]
) -> tuple[list[fx.Node], set[fx.Node]]:
    """(the nodes that a segment takes, the nodes that it computes) to return `outputs`."""
    inputs: dict[fx.Node, None] = {}
    inside: set[fx.Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        source = origin[node]
        is_result = node is source or (is_selection(node) and node.all_input_nodes[0] is source)
        if node.op == "placeholder" or (home[node] != index and source.op == "call_function" and is_result):
            value = node.meta.get("val")
            if value is not None and not isinstance(value, torch.Tensor):
                raise SerialGraphError(f"operation {node.name} ({node.target}) passes on a {type(value).__name__}")
            inputs[node] = None
        elif node not in inside:
            inside.add(node)
            waiting += node.all_input_nodes
    return list(inputs), inside
