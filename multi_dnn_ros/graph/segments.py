"""Segments of a stream plan: runs of operations on one stream that nothing interrupts, each as a graph of its own.

A compiler fuses the operations of a segment, and the segments run on the streams of the plan.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from multi_dnn_ros.graph.branches import SerialGraphError, estimated_s, origins
from multi_dnn_ros.graph.stream_plan import Step, StreamPlan
from multi_dnn_ros.models.trace import attribute, is_selection

aten = torch.ops.aten

#: Operations that a compiler fuses with those before and after them, besides element-wise ones.
_COPIES = frozenset(
    {
        aten.reshape.default, aten.flatten.using_ints, aten.contiguous.default, aten.clone.default, aten.to.dtype,
        aten._to_copy.default, aten.index.Tensor, aten.dropout.default, aten.repeat.default, aten.roll.default,
        aten.constant_pad_nd.default, aten.cat.default, aten.stack.default,
    }
)  # fmt: skip


def fused_s(graph_module: fx.GraphModule, node: fx.Node) -> float:
    """As estimated_s, for a compiled graph: element-wise operations and copies are fused and take no time themselves.

    A graph has at least one kernel, so this is too short for graphs that consist of such operations only.
    """
    is_fused = node.target in _COPIES or torch.Tag.pointwise in getattr(node.target, "tags", ())
    return 0.0 if is_fused else estimated_s(graph_module, node)


def segments(plan: StreamPlan) -> tuple[tuple[Step, ...], ...]:
    """The steps of a plan as segments, in an order that respects all dependencies.

    A segment is a longest run of consecutive steps of one stream of which only the first waits for other streams and
    only the last signals. So all that it reads was computed before it starts, all that others read of it is computed
    when it ends, and the segments depend on each other without cycles.
    """
    found: list[list[Step]] = []
    open_of: dict[int, list[Step]] = {}  # by stream: the segment that the stream's next step may continue
    for step in plan.steps:
        if step.waits or step.stream not in open_of:
            open_of[step.stream] = []
            found.append(open_of[step.stream])
        open_of[step.stream].append(step)
        if step.signals:
            del open_of[step.stream]
    return tuple(map(tuple, found))


def segment_name(index: int) -> str:
    """Name of a segment's submodule."""
    return f"segment_{index}"


def split_into_segments(graph_module: fx.GraphModule, plan: StreamPlan) -> tuple[fx.GraphModule, StreamPlan]:
    """A graph that calls each segment as a submodule, and the plan for it. Both share the tensors of `graph_module`.

    graph_module: of :func:`multi_dnn_ros.models.trace.trace`. The submodules are graphs, named by segment_name() in the
    order of segments(); they take tensors and return a flat tuple of tensors. A segment contains the parameters that it
    reads, and computes the views of other segments' results that it reads. Raises SerialGraphError if a segment would
    have to pass on something other than tensors.

    torch.fx.passes.split_module is not used, because it passes lists, views and parameters from part to part.
    """
    found = segments(plan)
    segment_of = {step.name: index for index, segment in enumerate(found) for step in segment}
    split = _Split(graph_module, segment_of, len(found))
    parts: dict[str, Any] = {}
    graph = fx.Graph()
    values = {node: graph.node_copy(node) for node in graph_module.graph.find_nodes(op="placeholder")}
    names: list[str] = []
    for index in range(len(found)):
        part, inputs, outputs = split.segment(index)
        parts[segment_name(index)] = part
        call = graph.call_module(segment_name(index), tuple(values[node] for node in inputs))
        names.append(call.name)
        for number, node in enumerate(outputs):
            values[node] = graph.call_function(operator.getitem, (call, number))
    for node in split.outside:
        values[node] = graph.node_copy(node, values.__getitem__)
    graph.output(fx.node.map_arg(graph_module.graph.output_node().args[0], values.__getitem__))
    steps = tuple(
        Step(
            names[index],
            segment[0].stream,
            tuple(names[segment_of[source]] for source in segment[0].waits),
            segment[-1].signals,
        )
        for index, segment in enumerate(found)
    )
    joins = tuple(names[segment_of[name]] for name in plan.joins)
    return _module(graph_module, graph, parts), StreamPlan(steps, plan.streams, joins, plan.duration_s)


class _Split:
    """Which nodes of a graph belong to which segment.

    segment_of: index of its segment for each operation that launches work. outside: nodes that are computed outside of
    the segments, because they are parameters or views of inputs and parameters that the graph returns.
    """

    def __init__(self, graph_module: fx.GraphModule, segment_of: Mapping[str, int], count: int) -> None:
        self._graph_module = graph_module
        graph = graph_module.graph
        self._origin = origins(graph)
        self._segment_of = segment_of
        self._inside: list[set[fx.Node]] = [set() for _ in range(count)]
        self._inputs: list[dict[fx.Node, None]] = [{} for _ in range(count)]
        self._outputs: list[dict[fx.Node, None]] = [{} for _ in range(count)]
        outside: set[fx.Node] = set()
        for node, origin in self._origin.items():
            if origin is node and node.op == "call_function":
                self._add(node, segment_of[node.name])
        for node in graph.output_node().all_input_nodes:
            index = self._home(node)
            if index is not None:
                self._add(node, index)
                self._outputs[index][node] = None
            while index is None and node.op != "placeholder" and node not in outside:
                outside.add(node)
                node = next(iter(node.all_input_nodes), node)
        self.outside = [node for node in graph.nodes if node in outside]

    def segment(self, index: int) -> tuple[fx.GraphModule, list[fx.Node], list[fx.Node]]:
        """(the graph, the nodes whose values it takes, the nodes whose values it returns)."""
        inputs, outputs = list(self._inputs[index]), list(self._outputs[index])
        graph = fx.Graph()
        values = {node: graph.placeholder(node.name) for node in inputs}
        for node in inputs:
            values[node].meta = dict(node.meta)
        for node in self._graph_module.graph.nodes:
            if node in self._inside[index]:
                values[node] = graph.node_copy(node, values.__getitem__)
        graph.output(tuple(values[node] for node in outputs))
        return _module(self._graph_module, graph), inputs, outputs

    def _home(self, node: fx.Node) -> int | None:
        """The segment that computes a node, or the result that it is a view of; None: no segment does."""
        return self._segment_of.get(self._origin[node].name)

    def _add(self, node: fx.Node, index: int) -> None:
        """Add a node to a segment, with what it reads that is no result of another segment."""
        if node in self._inside[index] or node in self._inputs[index]:
            return
        home = self._home(node)
        source = self._origin[node]
        passed_on = node is source or (is_selection(node) and node.all_input_nodes[0] is source)
        if node.op == "placeholder" or (home is not None and home != index and passed_on):
            value = node.meta.get("val")
            if value is not None and not isinstance(value, torch.Tensor):
                raise SerialGraphError(f"operation {node.name} ({node.target}) passes on a {type(value).__name__}")
            self._inputs[index][node] = None
            if home is not None:
                self._add(node, home)
                self._outputs[home][node] = None
            return
        for each in node.all_input_nodes:
            self._add(each, index)
        self._inside[index].add(node)


def _module(graph_module: fx.GraphModule, graph: fx.Graph, parts: Mapping[str, Any] | None = None) -> fx.GraphModule:
    """A module for a graph that shares the parameters of `graph_module`. parts: submodules that the graph calls."""
    attributes = {str(node.target): attribute(graph_module, node) for node in graph.find_nodes(op="get_attr")}
    return fx.GraphModule({**attributes, **(parts or {})}, graph, class_name="SegmentGraph")
