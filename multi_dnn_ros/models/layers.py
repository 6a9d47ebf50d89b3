"""The layers of a traced network: what each one computes and reads, from the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from multi_dnn_ros.models.cut import NodeCost, cut_graph
from multi_dnn_ros.models.operations import LayerWork as LayerWork
from multi_dnn_ros.models.operations import Shape, counter, operation_name, shapes_of


@dataclass(frozen=True)
class Layer:
    """One operation with the views of its result.

    nodes: their names in the graph; the first is the layer's name. module: qualified name of its module.
    """

    nodes: tuple[str, ...]
    module: str
    operation: str
    outputs: tuple[Shape, ...]
    work: LayerWork

    @property
    def name(self) -> str:
        return self.nodes[0]


def layers_of(graph_module: fx.GraphModule, dtype: torch.dtype = torch.float32) -> list[Layer]:
    """The layers of a graph of :func:`multi_dnn_ros.models.trace.trace` in float32, in order.

    dtype: that of weights and activations at run time, for the bytes.
    """
    (stage,) = cut_graph(graph_module, 1, costs=lambda node: 1.0)
    nodes = {node.name: node for node in graph_module.graph.nodes}
    describe = counter(graph_module)
    ratio = dtype.itemsize / torch.float32.itemsize
    return [_layer([nodes[name] for name in names], describe, ratio) for names in stage.layers]


def node_costs(layers: Iterable[tuple[Layer, float]]) -> NodeCost:
    """Seconds by operation from milliseconds by layer, for models.cut: a layer's first operation has its time.

    Raises ValueError for an operation that is in none of the layers.
    """
    known: dict[str, float] = {}
    for layer, ms in layers:
        known.update(dict.fromkeys(layer.nodes, 0.0))
        known[layer.name] = ms / 1e3

    def seconds(node: fx.Node) -> float:
        if node.name not in known:
            raise ValueError(f"the times are of another network: they have no operation '{node.name}'")
        return known[node.name]

    return seconds


def _layer(nodes: Sequence[fx.Node], describe: Callable[[fx.Node], LayerWork], ratio: float) -> Layer:
    works = [describe(node) for node in nodes]
    main = next((number for number, work in enumerate(works) if work.kind != "view"), 0)
    work = replace(
        works[main],
        macs=sum(each.macs for each in works),
        flops=sum(each.flops for each in works),
        parameters=sum(each.parameters for each in works),
        bytes_read=round(sum(each.bytes_read for each in works) * ratio),
        bytes_written=round(sum(each.bytes_written for each in works) * ratio),
    )
    stack = list((nodes[0].meta.get("nn_module_stack") or {}).values())
    return Layer(
        tuple(node.name for node in nodes), str(stack[-1][0]) if stack else "", operation_name(nodes[main]),
        shapes_of(nodes[main]), work,
    )  # fmt: skip
