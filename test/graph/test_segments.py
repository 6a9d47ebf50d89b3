"""Segments of a plan: every operation once, no cycles, the same results as the whole graph."""

from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_stream_plan import COUNTS, graphs, heads
from torch import fx, nn

from multi_dnn_ros.graph.branches import SerialGraphError, device_operations, estimated_s
from multi_dnn_ros.graph.segments import fused_s, segment_name, segments, split_into_segments
from multi_dnn_ros.graph.stream_plan import plan_streams
from multi_dnn_ros.models.trace import trace

aten = torch.ops.aten


@given(graphs(), st.sampled_from(COUNTS))
def test_segments_contain_every_step_once_and_are_not_interrupted(operations, streams):
    plan = plan_streams(operations, streams)
    found = segments(plan)
    assert sorted(step.name for segment in found for step in segment) == sorted(each.name for each in operations)
    in_stream = {stream: [step for step in plan.steps if step.stream == stream] for stream in range(plan.streams)}
    for segment in found:
        own = in_stream[segment[0].stream]
        begin = own.index(segment[0])
        assert own[begin : begin + len(segment)] == list(segment)
        assert not any(step.waits for step in segment[1:])
        assert not any(step.signals for step in segment[:-1])


@given(graphs(), st.sampled_from(COUNTS))
def test_segments_are_in_an_order_that_respects_all_dependencies(operations, streams):
    """So they have no cycles. What a segment reads is from segments that have ended, by stream order and events."""
    plan = plan_streams(operations, streams)
    found = segments(plan)
    number = {step.name: index for index, segment in enumerate(found) for step in segment}
    ended: list[set[int]] = []  # by segment: those that have ended when it starts
    last: dict[int, int] = {}
    for index, segment in enumerate(found):
        before = {number[source] for source in segment[0].waits} | {last[s] for s in [segment[0].stream] if s in last}
        assert all(each < index for each in before)
        ended.append(before.union(*(ended[each] for each in before)))
        last[segment[0].stream] = index
    for operation in operations:
        for source in operation.sources:
            assert number[source] == number[operation.name] or number[source] in ended[number[operation.name]]


def test_each_attention_head_is_a_segment():
    plan = plan_streams(heads(4), 4)
    names = [{step.name for step in segment} for segment in segments(plan)]
    for head in range(1, 4):
        assert any(names_of >= {f"query{head}", f"value_split{head}", f"head{head}"} for names_of in names)
    assert len(names) <= 4 + 2


UNARY = (aten.relu.default, aten.sigmoid.default, aten.neg.default, aten.exp.default)


@st.composite
def traced_graphs(draw: st.DrawFn) -> fx.GraphModule:
    """Random graphs of values of shape (2, 4) with views, lists, tuples and parameters."""
    parts = nn.Module()
    parts.weight = nn.Parameter(torch.linspace(-1.0, 1.0, 8).reshape(4, 2))
    graph = fx.Graph()
    values = [graph.placeholder("left"), graph.placeholder("right")]
    values.append(graph.call_function(aten.t.default, (graph.get_attr("weight"),)))
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(("unary", "sum", "view", "chunks", "maximum")))
        one, other = (values[draw(st.integers(0, len(values) - 1))] for _ in range(2))
        if kind == "unary":
            values.append(graph.call_function(draw(st.sampled_from(UNARY)), (one,)))
        elif kind == "sum":
            values.append(graph.call_function(aten.add.Tensor, (one, other)))
        elif kind == "view":
            column = graph.call_function(aten.select.int, (one, 1, draw(st.integers(0, 3))))
            wide = graph.call_function(aten.unsqueeze.default, (column, 1))
            values.append(graph.call_function(aten.expand.default, (wide, [2, 4])))
        elif kind == "chunks":
            chunks = graph.call_function(aten.split.Tensor, (one, 2, 1))
            halves = [graph.call_function(operator.getitem, (chunks, index)) for index in (1, 0)]
            values.append(graph.call_function(aten.cat.default, (halves, 1)))
        else:
            found = graph.call_function(aten.max.dim, (one, 1, True))
            largest, place = (graph.call_function(operator.getitem, (found, index)) for index in (0, 1))
            scaled = graph.call_function(aten.mul.Tensor, (largest, place))
            values.append(graph.call_function(aten.expand.default, (scaled, [2, 4])))
    results = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    graph.output((*results, values[-1]))
    return fx.GraphModule(parts, graph)


@given(traced_graphs(), st.sampled_from((2, 4)))
def test_segments_compute_the_same_as_the_graph(graph_module, streams):
    graph_module.graph.eliminate_dead_code()
    operations = device_operations(graph_module, lambda node: 20e-6)
    split, plan = split_into_segments(graph_module, plan_streams(operations, streams))
    parts = [split.get_submodule(segment_name(index)) for index in range(len(plan.steps))]
    launched = [each.name for part in parts for each in device_operations(part, lambda node: 0.0)]
    assert sorted(launched) == sorted(each.name for each in operations)
    inputs = (torch.linspace(-2.0, 2.0, 8).reshape(2, 4), torch.linspace(3.0, -1.0, 8).reshape(2, 4))
    with torch.no_grad():
        expected, results = graph_module(*inputs), split(*inputs)
    assert len(results) == len(expected)
    assert all(torch.equal(left, right) for left, right in zip(results, expected, strict=True))


def split_of(module: nn.Module, *shape: int) -> tuple[fx.GraphModule, list[fx.GraphModule]]:
    graph_module = trace(module.eval(), (torch.zeros(shape),))
    split, plan = split_into_segments(
        graph_module, plan_streams(device_operations(graph_module, lambda node: 20e-6), 4)
    )
    return split, [split.get_submodule(segment_name(index)) for index in range(len(plan.steps))]


def test_a_segment_computes_the_views_that_it_reads_and_contains_its_parameters():
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(3, 4), nn.Linear(3, 4)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            left, right = torch.chunk(value.exp(), 2, 1)
            return self.left(left).sigmoid() + self.right(right).sigmoid()

    module = Forked()
    split, parts = split_of(module, 2, 6)
    assert len(parts) == 4
    assert sum(node.target is aten.split.Tensor for part in parts for node in part.graph.nodes) == 2
    assert not any(node.target is aten.split.Tensor for node in parts[0].graph.nodes)
    assert {id(tensor) for tensor in split.parameters()} == {id(tensor) for tensor in module.parameters()}
    assert not any(node.op == "get_attr" for node in split.graph.nodes)
    value = torch.linspace(-1, 1, 12).reshape(2, 6)
    with torch.no_grad():
        assert torch.equal(split(value)[0], module(value))


def test_inputs_and_parameters_that_are_returned_pass_by_the_segments():
    class Returned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 2))

        def forward(self, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return value.exp(), value.transpose(0, 1), self.weight, self.weight.transpose(0, 1), value.sigmoid()

    module = Returned()
    split, parts = split_of(module, 2, 3)
    value = torch.linspace(-1, 1, 6).reshape(2, 3)
    with torch.no_grad():
        for result, right in zip(split(value), module(value), strict=True):
            assert torch.equal(result, right)
    assert split(value)[2] is module.weight
    assert sum(len(part.graph.output_node().args[0]) for part in parts) == 2


def test_a_list_that_another_segment_reads_as_a_whole_is_rejected():
    graph = fx.Graph()
    value = graph.placeholder("value")
    lists = graph.call_function(aten.meshgrid.default, ([value, value],))
    lists.meta["val"] = [torch.zeros(3, 3)] * 2
    joined = [graph.call_function(each, (lists, 1)) for each in (aten.cat.default, aten.stack.default)]
    graph.output(tuple(graph.call_function(aten.exp.default, (node,)) for node in joined))
    graph_module = fx.GraphModule(nn.Module(), graph)
    plan = plan_streams(device_operations(graph_module, lambda node: 20e-6), 2)
    with pytest.raises(SerialGraphError, match=r"operation meshgrid_default .* passes on a list"):
        split_into_segments(graph_module, plan)


def test_element_wise_operations_take_no_time_of_their_own_when_fused():
    class Pointwise(nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return (value @ value).relu().exp().softmax(1)

    graph_module = trace(Pointwise(), (torch.zeros(8, 8),))
    costs = {node.name: fused_s(graph_module, node) for node in graph_module.graph.nodes if node.op == "call_function"}
    assert {name: cost_s > 0 for name, cost_s in costs.items()} == {
        "matmul": True, "relu": False, "exp": False, "softmax": True,
    }  # fmt: skip
    assert all(estimated_s(graph_module, node) > 0 for node in graph_module.graph.nodes if node.op == "call_function")
