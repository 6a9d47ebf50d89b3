"""Merges sibling operations: convolutions or linear layers that read the same tensor become one with all channels.

Examples are the 1x1 convolutions at the beginning of an Inception block, the two towers of a detection head, and the
query, key and value layers of attention heads. An activation that follows all siblings is applied to the merged result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from multi_dnn_ros.graph.convolution_nodes import arguments_of, convolution_arguments, is_transposed
from multi_dnn_ros.graph.nodes import attribute, is_selection, is_write, tensor_of

aten = torch.ops.aten

_CONVOLUTIONS = (aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.convolution.default)
#: Views that are correct for any strides of their input, and aten.view, which becomes a reshape.
_VIEWS = frozenset(
    {
        aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.flatten.using_ints,
        aten.alias.default, aten.detach.default, aten.permute.default, aten.transpose.int, aten.t.default,
        aten.select.int, aten.slice.Tensor, aten.expand.default, aten.unsqueeze.default, aten.squeeze.default,
        aten.squeeze.dim, aten.squeeze.dims, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int,
        aten.chunk.default,
    }
)  # fmt: skip
_NEEDS_STRIDES = (aten.view.default, aten._unsafe_view.default)
#: Concatenated weights and biases, by the ids of the tensors that they consist of.
Concatenated = dict[tuple[int, ...], torch.Tensor]


@dataclass(frozen=True)
class Siblings:
    """operations: at least two, in the order of the graph. axis: axis of the channels of their results, negative."""

    operations: tuple[fx.Node, ...]
    axis: int


def find_siblings(graph_module: fx.GraphModule) -> tuple[Siblings, ...]:
    """Groups of operations of a graph of :func:`multi_dnn_ros.graph.trace.trace` that can be merged.

    They are convolutions without groups whose kernels, strides, padding and dilation are equal, or linear layers, all
    with constant weights. A graph with an operation that writes into a tensor has no such groups.
    """
    nodes = list(graph_module.graph.nodes)
    if any(is_write(node) for node in nodes):
        return ()
    found: dict[tuple[Any, ...], list[fx.Node]] = {}
    for node in nodes:
        key = _key(graph_module, node)
        if key is not None and _any_strides(node):
            found.setdefault(key, []).append(node)
    return tuple(
        Siblings(tuple(group), -1 if group[0].target is aten.linear.default else 1 - _dimensions(group[0]))
        for group in found.values()
        if len(group) > 1
    )


def merge_siblings(graph_module: fx.GraphModule, concatenated: Concatenated | None = None) -> fx.GraphModule | None:
    """A graph with the same inputs and outputs in which siblings are merged; None if there are none.

    concatenated: reused and extended, so that several graphs of one DNN share their merged weights; the tensors that
    they consist of must stay alive. All other parameters are shared. A merged result is divided by views, so results
    may be equal only within rounding. Outputs of the graph have the same strides as before.
    """
    if not find_siblings(graph_module):
        return None
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph_module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    copy = fx.GraphModule(graph_module, graph, class_name="MergedGraph")
    known: Concatenated = {} if concatenated is None else concatenated
    for siblings in find_siblings(copy):
        _merge(copy, siblings, known)
    graph.eliminate_dead_code()
    graph.lint()
    return fx.GraphModule(copy, graph, class_name="MergedGraph")  # without the separate weights


def _key(graph_module: fx.GraphModule, node: fx.Node) -> tuple[Any, ...] | None:
    """Equal for operations that can be merged; None for those that cannot."""
    if node.target is aten.linear.default:
        image, weight, bias = arguments_of(node, "input", "weight", "bias")
        geometry: tuple[Any, ...] = ()
    elif node.target in _CONVOLUTIONS and not is_transposed(node):
        image, weight, bias, *lengths, groups = convolution_arguments(node)
        geometry = tuple(map(tuple, lengths))
        if groups != 1:
            return None
    else:
        return None
    constants = [each for each in (weight, bias) if each is not None]
    if tensor_of(node) is None or not all(isinstance(each, fx.Node) and each.op == "get_attr" for each in constants):
        return None
    values = [attribute(graph_module, each) for each in constants]
    if any(not isinstance(value, torch.Tensor) for value in values) or values[0].ndim < 2:
        return None
    return image, node.target, geometry, tuple(values[0].shape[1:]), values[0].dtype, values[0].device


def _dimensions(node: fx.Node) -> int:
    tensor = tensor_of(node)
    assert tensor is not None
    return tensor.ndim


def _any_strides(node: fx.Node) -> bool:
    """Whether all views of the node's result, and views of these, are correct for any strides of the result."""
    for user in node.users:
        if is_selection(user) or user.target in _VIEWS:
            if not _any_strides(user):
                return False
        elif isinstance(user.target, torch._ops.OpOverload) and (user.target.is_view or "strided" in str(user.target)):
            return False
    return True


def _merge(graph_module: fx.GraphModule, siblings: Siblings, known: Concatenated) -> None:
    graph, operations, axis = graph_module.graph, siblings.operations, siblings.axis
    first = operations[0]
    weights, biases = zip(*(_parameters(graph_module, node) for node in operations), strict=True)
    sizes = [int(weight.shape[0]) for weight in weights]
    with graph.inserting_before(first):
        weight = _constant(graph_module, known, weights, lambda: torch.cat(weights))
        bias = None
        if any(each is not None for each in biases):
            filled = [
                weights[0].new_zeros(size) if each is None else each for size, each in zip(sizes, biases, strict=True)
            ]
            named = [weight if each is None else each for weight, each in zip(weights, biases, strict=True)]
            bias = _constant(graph_module, known, (*named, *weights), lambda: torch.cat(filled))
        kwargs = {key: value for key, value in first.kwargs.items() if key not in ("weight", "bias", "input")}
        image = first.all_input_nodes[0]
        whole = graph.call_function(first.target, (image, weight, bias, *first.args[3:]), kwargs)  # type: ignore[arg-type]
        value = tensor_of(first)
        assert value is not None
        shape = [*value.shape]
        shape[axis] = sum(sizes)
        whole.meta = {**first.meta, "val": value.new_empty(shape)}
    ends: tuple[fx.Node, ...] = operations
    while (activation := _common_activation(ends)) is not None:
        with graph.inserting_after(whole):
            whole = graph.call_function(activation.target, (whole, *activation.args[1:]), activation.kwargs)  # type: ignore[arg-type]
        whole.meta = {**activation.meta, "val": whole.args[0].meta["val"]}  # type: ignore[union-attr]
        ends = tuple(next(iter(node.users)) for node in ends)
    _divide(graph, whole, ends, sizes, axis)


def _parameters(graph_module: fx.GraphModule, node: fx.Node) -> tuple[torch.Tensor, torch.Tensor | None]:
    weight, bias = arguments_of(node, "weight", "bias")
    return attribute(graph_module, weight), None if bias is None else attribute(graph_module, bias)


def _constant(
    graph_module: fx.GraphModule, known: Concatenated, parts: Sequence[torch.Tensor], make: Callable[[], torch.Tensor]
) -> fx.Node:
    """The node of a concatenated tensor, inserted at the graph's insertion point. parts: tensors that identify it."""
    key = tuple(map(id, parts))
    if key not in known:
        with torch.no_grad():
            known[key] = make().detach()
    name = f"_merged_{sum(1 for name, _ in graph_module.named_buffers(recurse=False) if name.startswith('_merged_'))}"
    graph_module.register_buffer(name, known[key], persistent=False)
    return graph_module.graph.get_attr(name)


def _common_activation(nodes: Sequence[fx.Node]) -> fx.Node | None:
    """The element-wise operation of one tensor that is the only reader of each node; None if they differ."""
    readers = [next(iter(node.users)) if len(node.users) == 1 else None for node in nodes]
    first = readers[0]
    if first is None or not isinstance(first.target, torch._ops.OpOverload):
        return None
    if torch.Tag.pointwise not in first.target.tags or first.all_input_nodes != [nodes[0]]:
        return None
    if torch.Tag.nondeterministic_seeded in first.target.tags:
        return None
    value = tensor_of(first)
    for node, reader in zip(nodes, readers, strict=True):
        if reader is None or reader.target is not first.target or reader.args[:1] != (node,):
            return None
        other = tensor_of(reader)
        if reader.args[1:] != first.args[1:] or reader.kwargs != first.kwargs or not _any_strides(reader):
            return None
        if value is None or other is None or (other.shape, other.dtype) != (_shape(node), _dtype(node)):
            return None
    return first


def _shape(node: fx.Node) -> torch.Size | None:
    value = tensor_of(node)
    return None if value is None else value.shape


def _dtype(node: fx.Node) -> torch.dtype | None:
    value = tensor_of(node)
    return None if value is None else value.dtype


def _divide(graph: fx.Graph, whole: fx.Node, ends: Sequence[fx.Node], sizes: Sequence[int], axis: int) -> None:
    """Replace the ends by views of the merged result."""
    begin, last = 0, whole
    for end, size in zip(ends, sizes, strict=True):
        with graph.inserting_after(last):
            part = last = graph.call_function(aten.slice.Tensor, (whole, axis, begin, begin + size))
        part.meta = {**end.meta, "val": whole.meta["val"].narrow(axis, begin, size)}
        if _is_returned(end):  # the caller expects the strides of the separate result
            with graph.inserting_after(part):
                part = last = graph.call_function(aten.contiguous.default, (part,))
            part.meta = dict(end.meta)
        end.replace_all_uses_with(part)
        begin += size
        _accept_strides(part)


def _is_returned(node: fx.Node) -> bool:
    """Whether the node or a view of it is an output of the graph."""
    return any(
        user.op == "output" or ((is_selection(user) or user.target in _VIEWS) and _is_returned(user))
        for user in node.users
    )


def _accept_strides(node: fx.Node) -> None:
    """Make all views of a node correct for any strides of the node."""
    for user in node.users:
        if user.target in _NEEDS_STRIDES:
            user.target = aten.reshape.default
        if is_selection(user) or user.target in _VIEWS:
            _accept_strides(user)
