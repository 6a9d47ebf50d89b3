"""The layers of a traced network: what each one computes and reads, from the shapes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from multi_dnn_ros.models.cut import NodeCost, cut_graph
from multi_dnn_ros.models.operations import Operation, Shape, counter, total


@dataclass(frozen=True)
class LayerWork:
    """What the time of a layer depends on; see :mod:`multi_dnn_ros.models.operations` for the counts.

    channels_in, channels_out: size of axis 1 of the first input and output (0: none). pixels: output positions per
    channel, over all images of the batch.
    """

    kind: str
    macs: int
    flops: int
    parameters: int
    bytes_read: int
    bytes_written: int
    window: int
    groups: int
    channels_in: int
    channels_out: int
    pixels: int

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Arithmetic operations per byte read or written."""
        return self.flops / self.moved if self.moved else 0.0


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
    return [
        _layer([nodes[name] for name in names], [describe(nodes[name]) for name in names], ratio)
        for names in stage.layers
    ]


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


def _layer(nodes: Sequence[fx.Node], operations: Sequence[Operation], ratio: float) -> Layer:
    main = next((operation for operation in operations if operation.kind != "view"), operations[0])
    counts = total(operation.counts for operation in operations)
    first = main.inputs[0] if main.inputs else ()
    last = main.outputs[0] if main.outputs else ()
    work = LayerWork(
        main.kind, counts.macs, counts.flops, counts.parameters, round(counts.bytes_read * ratio),
        round(counts.bytes_written * ratio), main.window, main.groups, first[1] if len(first) > 1 else 0,
        last[1] if len(last) > 1 else 0, math.prod(last) // last[1] if len(last) > 1 and last[1] else math.prod(last),
    )  # fmt: skip
    stack = list((nodes[0].meta.get("nn_module_stack") or {}).values())
    return Layer(tuple(node.name for node in nodes), str(stack[-1][0]) if stack else "", main.name, main.outputs, work)
