"""Replaces in-place operations of an exported graph by functional ones, where the graph alone suffices.

PyTorch's own functionalization traces the whole DNN again, which takes longer than the export. It is still used for
unknown operations and for possible aliases.
"""

from __future__ import annotations

import operator

import torch
from torch import fx
from torch.fx.node import Argument

from multi_dnn_ros.graph.nodes import tensor_of

aten = torch.ops.aten

_IN_PLACE = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.mul_.Tensor: aten.mul.Tensor,
    aten.relu_.default: aten.relu.default,
    aten.hardtanh_.default: aten.hardtanh.default,
    aten.hardsigmoid_.default: aten.hardsigmoid.default,
    aten.hardswish_.default: aten.hardswish.default,
    aten.leaky_relu_.default: aten.leaky_relu.default,
    aten.sigmoid_.default: aten.sigmoid.default,
    aten.silu_.default: aten.silu.default,
}
#: Operations whose results never alias other tensors' memory.
_FRESH = {
    *_IN_PLACE.values(),
    aten._assert_tensor_metadata.default,
    aten.adaptive_avg_pool2d.default,
    aten.avg_pool2d.default,
    aten.batch_norm.default,
    aten.cat.default,
    aten.clamp_min.default,
    aten.conv2d.default,
    aten.div.Tensor,
    aten.exp.default,
    aten.linear.default,
    aten.max_pool2d.default,
    aten.mean.dim,
    aten.softplus.default,
    aten.sub.Tensor,
    aten.upsample_bilinear2d.vec,
    aten.upsample_nearest2d.vec,
}
_DROPOUTS = {aten.dropout.default, aten.dropout_.default}
#: Index of the argument that selects training mode.
_TRAINS = {aten.batch_norm.default: 5, **dict.fromkeys(_DROPOUTS, 2)}
_VIEWS_AND_CASTS = {
    aten.flatten.using_ints,
    aten.permute.default,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.to.dtype,
    aten.view.default,
    operator.getitem,
}
_KNOWN = _FRESH | _IN_PLACE.keys() | _DROPOUTS | _VIEWS_AND_CASTS


def is_known(graph: fx.Graph) -> bool:
    """Whether `make_functional` supports all operations of a graph made by torch.export.

    Batch norm and dropout in training mode are not supported: they update statistics, or are random.
    """
    calls = [node for node in graph.nodes if node.op in ("call_function", "call_module")]
    return all(node.target in _KNOWN and not _trains(node) for node in calls)


def make_functional(graph_module: fx.GraphModule) -> bool:
    """Replace all operations that write into another operation's tensor. All operations must be known.

    False if that is impossible; the graph must then be discarded.
    """
    _remove_no_ops(graph_module.graph)
    passed: set[fx.Node] = set()
    for node in graph_module.graph.nodes:
        if node.target in _IN_PLACE and not _replace_write(node, passed):
            return False
        passed.add(node)
    graph_module.recompile()
    return True


def _trains(node: fx.Node) -> bool:
    argument = _TRAINS.get(node.target)  # type: ignore[call-overload]
    return argument is not None and bool(node.args[argument])


def _remove_no_ops(graph: fx.Graph) -> None:
    """Remove dropout in eval mode, and casts to the same dtype."""
    for node in list(graph.nodes):
        is_no_op = node.target in _DROPOUTS
        if node.target is aten.to.dtype and len(node.args) == 2 and not node.kwargs:
            is_no_op = _dtype(node.args[0]) is node.args[1]
        if is_no_op:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _replace_write(node: fx.Node, passed: set[fx.Node]) -> bool:
    """If only `node` and later operations read the memory that `node` writes into, replace the write; later operations
    then read its result. Returns whether this is possible.
    """
    written = node.args[0]
    if not isinstance(written, fx.Node) or written.target not in _FRESH:
        return False  # an input, a parameter, or possibly aliased memory
    if any(user.target not in _FRESH for user in written.users if user in passed):
        return False  # the write would be visible in a view
    if any(_dtype(source) is not _dtype(written) for source in node.all_input_nodes):
        return False  # in-place operations keep the dtype, others promote it
    node.target = _IN_PLACE[node.target]  # type: ignore[index]
    written.replace_all_uses_with(node, delete_user_cb=lambda user: user is not node and user not in passed)
    return True


def _dtype(value: Argument) -> torch.dtype | None:
    """dtype of a node's traced value; None for anything else, parameters and constants included."""
    tensor = tensor_of(value)
    return None if tensor is None else tensor.dtype
