"""Fully connected layers of few images as sums of products, for compilers that fuse them with what stands around.

Squeeze and excitation has them as 1x1 convolutions of 1x1 images, for which cuDNN's smallest tiles are too large: 7 us
each, and 0.3 of the 1.7 ms that two images of RegNetY-32GF take on an H200.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from multi_dnn_ros.backends.convolution_nodes import CONVOLUTIONS, convolution_arguments, is_transposed, traced
from multi_dnn_ros.backends.fused_convolution import CONVOLUTION_RELU

aten = torch.ops.aten
#: Images, at most; each reads all weights.
_MOST_IMAGES = 4


def sum_small_products(graph_module: fx.GraphModule) -> int:
    """Replace them in the graph, which was traced with aten operations; how many there were."""
    found = [node for node in graph_module.graph.nodes if _is_small(node)]
    for node in found:
        _replace(node)
    if found:
        graph_module.graph.lint()
        graph_module.recompile()
    return len(found)


def _is_small(node: fx.Node) -> bool:
    if node.target not in (*CONVOLUTIONS, CONVOLUTION_RELU) or is_transposed(node):
        return False
    image, weight, _, _, padding, groups = _parts(node)
    shapes = _shape(image), _shape(weight)
    if len(shapes[0]) != 4 or shapes[0][0] > _MOST_IMAGES:
        return False
    return all(shape[2:] == (1, 1) for shape in shapes) and groups == 1 and not any(padding)


def _parts(node: fx.Node) -> tuple[Any, ...]:
    """(image, weight, bias, z, padding, groups)."""
    if node.target is CONVOLUTION_RELU:
        image, weight, bias, z, _, padding, _, groups = node.args
        return image, weight, bias, z, padding, groups
    image, weight, bias, _, padding, _, groups = convolution_arguments(node)
    return image, weight, bias, None, padding, groups


def _shape(node: fx.Node) -> tuple[int, ...]:
    """Of what it was traced to give."""
    tensor = traced(node)
    return () if tensor is None else tuple(tensor.shape)


def _replace(node: fx.Node) -> None:
    image, weight, bias, z, *_ = _parts(node)
    images, outputs = _shape(image)[0], _shape(weight)[0]
    with node.graph.inserting_before(node):

        def call(function: Any, *args: Any) -> fx.Node:
            return node.graph.call_function(function, args)

        rows = call(aten.reshape.default, image, [images, 1, -1])
        filters = call(aten.reshape.default, weight, [1, outputs, -1])
        total = call(aten.sum.dim_IntList, call(aten.mul.Tensor, rows, filters), [2])
        if bias is not None:
            total = call(aten.add.Tensor, total, bias)
        total = call(aten.reshape.default, total, [images, outputs, 1, 1])
        if z is not None:
            total = call(aten.add.Tensor, total, z)
        if node.target is CONVOLUTION_RELU:
            total = call(aten.relu.default, total)
    total.meta = dict(node.meta)
    node.replace_all_uses_with(total)
    node.graph.erase_node(node)
