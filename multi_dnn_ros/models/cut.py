"""Cuts any DNN into stages: runs of consecutive layers, each of which passes on the tensors that later runs need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn

from multi_dnn_ros.models.operations import bytes_of, counter, is_view
from multi_dnn_ros.models.partition import BYTES_PER_S, KNOWN_SLACK, SLACK, estimated_s, partition
from multi_dnn_ros.models.trace import is_selection, is_write, tensor_of, trace

Tensors = tuple[torch.Tensor, ...]
#: Seconds of one operation of the traced graph. Measured times may be looked up by the name of the fx.Node, which is
#: the same in every trace of a model with one torch release.
NodeCost = Callable[[fx.Node], float]


class GraphStage(nn.Module):
    """One stage of a DNN: forward(carried tensors) -> carried tensors of the next stage, or the flat raw outputs.

    graph: the operations as a GraphModule whose placeholders are the carried tensors. layers: for each layer, in order,
    the names of its traced operations. cost_s: their estimated or measured seconds. Parameters are shared with the
    original DNN, so moving a stage to a device also moves the DNN's parameters.
    """

    def __init__(self, graph: fx.GraphModule, layers: tuple[tuple[str, ...], ...], cost_s: float) -> None:
        super().__init__()
        self.graph = graph
        self.layers = layers
        self.cost_s = cost_s

    @property
    def operations(self) -> tuple[str, ...]:
        """Names of its traced operations, in order."""
        return tuple(name for layer in self.layers for name in layer)

    def forward(self, carried: Tensors) -> Tensors:
        outputs: Tensors = self.graph(*carried)
        return outputs


@dataclass
class _Layer:
    """Consecutive nodes that must not be separated."""

    nodes: list[fx.Node]
    cost_s: float
    carried: list[fx.Node]  # tensors that a cut before this layer carries over
    cut_cost_s: float


def cut_module(
    module: nn.Module,
    example_inputs: Tensors,
    stages: int,
    *,
    costs: NodeCost | None = None,
    limit_s: float = float("inf"),
    fold_batch_norm: bool = False,
) -> list[GraphStage]:
    """Cut `module` (eval mode) into stages of about equal cost that, run in sequence, compute the same results.

    example_inputs: positional inputs of the final shapes and types; the first stage takes them as its carried tensors.
    The last stage returns the module's output tensors as a flat tuple, in the order in which its tuples and dicts
    contain them. stages: their number; a DNN with fewer layers is cut into one stage per layer. A layer is one traced
    operation and the views, selections and in-place writes that directly follow it.
    costs: seconds per node; by default estimated from operation counts and memory traffic. limit_s: maximum cost of a
    stage with several layers; it is exceeded if `stages` is too small.
    Cuts are placed where few bytes are carried, and preferably before a convolution or matrix product instead of
    between it and its activation.
    Parameters and buffers are shared with `module`, except those of batch norms that `fold_batch_norm` folds into the
    preceding convolution. Values that depend on neither inputs nor parameters are computed here, once. Every stage can
    be moved to any device.

    Raises ValueError in training mode or for stages < 1, TraceError if the module cannot be traced.
    """
    if module.training:
        raise ValueError(f"{type(module).__name__} is in training mode; call .eval() first")
    traced = trace(module, example_inputs, fold_batch_norm=fold_batch_norm)
    return cut_graph(traced, stages, costs=costs, limit_s=limit_s)


def untraced_stage(layer: nn.Module) -> GraphStage:
    """A module with one input and one output tensor as one stage that calls the module, without tracing it."""
    parts = nn.Module()
    parts.layer = layer
    graph = fx.Graph()
    graph.output((graph.call_module("layer", (graph.placeholder("image"),)),))
    return GraphStage(fx.GraphModule(parts, graph, class_name="StageGraph"), (("layer",),), 0.0)


def cut_graph(
    graph_module: fx.GraphModule,
    stages: int,
    *,
    costs: NodeCost | None = None,
    limit_s: float = float("inf"),
) -> list[GraphStage]:
    """Cut a graph made by :func:`multi_dnn_ros.models.trace.trace`; otherwise as :func:`cut_module`."""
    if stages < 1:
        raise ValueError(f"stages = {stages}: must be at least 1")
    layers = _layers(graph_module, costs or _estimate(graph_module))
    if not layers:
        return [_stage(graph_module, [], _inputs(graph_module), _results(graph_module))]
    slack = SLACK if costs is None else KNOWN_SLACK
    costs_s, cut_costs_s = [layer.cost_s for layer in layers], [layer.cut_cost_s for layer in layers]
    starts = partition(costs_s, cut_costs_s, stages, slack, limit_s)
    result = []
    for begin, end in zip(starts, [*starts[1:], len(layers)], strict=True):
        carried_out = layers[end].carried if end < len(layers) else _results(graph_module)
        carried_in = layers[begin].carried if begin else _inputs(graph_module)
        result.append(_stage(graph_module, layers[begin:end], carried_in, carried_out))
    return result


def _inputs(graph_module: fx.GraphModule) -> list[fx.Node]:
    return list(graph_module.graph.find_nodes(op="placeholder"))


def _results(graph_module: fx.GraphModule) -> list[fx.Node]:
    (results,) = graph_module.graph.output_node().args
    assert isinstance(results, tuple)
    return [result for result in results if isinstance(result, fx.Node)]


def _layers(graph_module: fx.GraphModule, costs: NodeCost) -> list[_Layer]:
    """Group the operations into layers, so that all values that cross a cut are tensors (not tuples of them).

    A layer is one operation and the views, selections and in-place writes that directly follow it. A view of the result
    of an earlier layer therefore belongs to the layer before it.
    """
    operations = [node for node in graph_module.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    position = {node: index for index, node in enumerate(operations)}
    output = graph_module.graph.output_node()
    last_use = {
        node: max((position.get(user, len(operations)) for user in node.users), default=-1)
        for node in (*_inputs(graph_module), *operations)
    }
    live = [node for node in _inputs(graph_module) if last_use[node] >= 0]
    layers: list[_Layer] = []
    for index, node in enumerate(operations):
        live = [carried for carried in live if last_use[carried] >= index]
        joined = is_selection(node) or is_view(node) or is_write(node)
        if layers and (joined or not all(tensor_of(carried) is not None for carried in live)):
            layers[-1].nodes.append(node)
            layers[-1].cost_s += costs(node)
        else:
            carry_s = sum(bytes_of(tensor_of(carried)) for carried in live) / BYTES_PER_S
            # A cut before an element-wise operation prevents its fusion with the preceding operation.
            cut_cost_s = carry_s * (2.0 if _is_elementwise(node) else 1.0)
            layers.append(_Layer([node], costs(node), list(live), cut_cost_s))
        if output in node.users or last_use[node] > index:
            live.append(node)
    return layers


def _stage(
    graph_module: fx.GraphModule,
    layers: Sequence[_Layer],
    carried_in: Sequence[fx.Node],
    carried_out: Sequence[fx.Node],
) -> GraphStage:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}

    def copy_of(node: fx.Node) -> fx.Node:
        if node not in copies:
            assert node.op == "get_attr", f"{node.name} is used before it is computed"
            copies[node] = graph.node_copy(node)
        return copies[node]

    for node in carried_in:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    nodes = [node for layer in layers for node in layer.nodes]
    for node in nodes:
        copies[node] = graph.node_copy(node, copy_of)
    graph.output(tuple(copy_of(node) for node in carried_out))
    return GraphStage(
        fx.GraphModule(graph_module, graph, class_name="StageGraph"),
        tuple(tuple(node.name for node in layer.nodes) for layer in layers),
        sum(layer.cost_s for layer in layers),
    )


def _is_elementwise(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or "batch_norm" in node.target.name()


def _estimate(graph_module: fx.GraphModule) -> NodeCost:
    """A function that returns the estimated seconds of a node; 0 for a selection."""
    describe = counter(graph_module)

    def seconds(node: fx.Node) -> float:
        work = None if is_selection(node) else describe(node)
        return estimated_s(work.macs, work.moved) if work is not None else 0.0

    return seconds
