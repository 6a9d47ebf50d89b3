"""Replaces small matrix products by sums, which compilers fuse with the surrounding operations.

The tiles of library kernels are too large for such products. Squeeze-and-excitation blocks have fully connected layers
as 1x1 convolutions of 1x1 images: 7 us each, together 0.3 of the 1.7 ms that two images of RegNetY-32GF take on an
H200. The last layer of VGG16 for ten classes takes 13 us, as sums 3 us.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
_CONVOLUTIONS = (aten.conv2d.default, aten.convolution.default)
#: Maximum number of images of a convolution, because each image reads all weights.
_MAX_IMAGES = 4
#: Maximum number of outputs of a fully connected layer, and of its results for all images.
_MAX_OUTPUTS, _MAX_RESULTS = 16, 512


def sum_small_products(graph_module: fx.GraphModule) -> int:
    """Replace small products in a graph of ATen operations, in place. Returns their number."""
    nodes = list(graph_module.graph.nodes)
    convolutions = [node for node in nodes if _is_small_convolution(node)]
    products = [node for node in nodes if _has_few_outputs(node)]
    for node in convolutions:
        _replace_convolution(node)
    for node in products:
        _replace_product(node)
    if convolutions or products:
        graph_module.graph.lint()
        graph_module.recompile()
    return len(convolutions) + len(products)


def _is_small_convolution(node: fx.Node) -> bool:
    if node.target not in _CONVOLUTIONS or any(_arguments(node, "transposed")):
        return False
    image, weight, padding, groups = _arguments(node, "input", "weight", "padding", "groups")
    shapes = _shape(image), _shape(weight)
    if len(shapes[0]) != 4 or shapes[0][0] > _MAX_IMAGES:
        return False
    padded = any(padding) if isinstance(padding, list | tuple) else padding
    return all(shape[2:] == (1, 1) for shape in shapes) and groups == 1 and not padded


def _arguments(node: fx.Node, *names: str) -> tuple[Any, ...]:
    """The named arguments of an ATen operation, given by position or by name, or their default values; () for a name
    that the operation does not have.
    """
    assert isinstance(node.target, torch._ops.OpOverload)
    values = dict(node.kwargs)
    for position, argument in enumerate(node.target._schema.arguments):
        given = position < len(node.args)
        values.setdefault(argument.name, node.args[position] if given else argument.default_value)
    return tuple(values[name] for name in names if name in values)


def _shape(node: fx.Node) -> tuple[int, ...]:
    """Shape of the node's traced value; () if it is not a tensor."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def _replace_convolution(node: fx.Node) -> None:
    image, weight, bias = _arguments(node, "input", "weight", "bias")
    images, outputs = _shape(image)[0], _shape(weight)[0]
    graph = node.graph
    with graph.inserting_before(node):
        total = _sums(graph, image, weight, bias, (images, outputs))
        total = graph.call_function(aten.reshape.default, (total, [images, outputs, 1, 1]))
    _replace(total, node)


def _sums(graph: fx.Graph, rows: Any, filters: Any, bias: Any, shape: tuple[int, int]) -> fx.Node:
    """Dot product of each row with each filter, plus bias. shape: (rows, filters), that of the result."""
    rows = graph.call_function(aten.reshape.default, (rows, [shape[0], 1, -1]))
    filters = graph.call_function(aten.reshape.default, (filters, [1, shape[1], -1]))
    products = graph.call_function(aten.mul.Tensor, (rows, filters))
    total = graph.call_function(aten.sum.dim_IntList, (products, [2]))
    return total if bias is None else graph.call_function(aten.add.Tensor, (total, bias))


def _replace(new: fx.Node, old: fx.Node) -> None:
    new.meta = dict(old.meta)
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def _has_few_outputs(node: fx.Node) -> bool:
    """Whether the node is a product with a transposed weight, as in a fully connected layer, with few outputs."""
    if node.target not in (aten.addmm.default, aten.mm.default) or node.kwargs:
        return False
    rows, columns = node.args[-2:]
    if not isinstance(columns, fx.Node) or columns.target is not aten.t.default or len(_shape(columns)) != 2:
        return False
    outputs = _shape(columns)[1]
    return outputs <= _MAX_OUTPUTS and isinstance(rows, fx.Node) and _shape(rows)[0] * outputs <= _MAX_RESULTS


def _replace_product(node: fx.Node) -> None:
    bias, rows, columns = (None, *node.args)[-3:]
    assert isinstance(rows, fx.Node)
    assert isinstance(columns, fx.Node)
    with node.graph.inserting_before(node):
        total = _sums(node.graph, rows, columns.args[0], bias, (_shape(rows)[0], _shape(columns)[1]))
    _replace(total, node)
    if not columns.users:
        node.graph.erase_node(columns)
