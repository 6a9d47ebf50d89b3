"""Any DNN as one flat graph of ATen operations that can be cut anywhere and moved to any device.

The graph comes from ``torch.export`` (non-strict), functionalized: no operation writes into its inputs, so a carried
tensor is never modified by another job, whatever in-place operations the model has.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import Argument
from torch.utils import _pytree as pytree

from multi_dnn_ros.common.errors import summarize_error

aten = torch.ops.aten
#: Loggers whose warnings concern torch's internals, which users cannot change.
_LOGGERS = ("torch.export", "torch.fx.experimental.symbolic_shapes")


class TraceError(ValueError):
    """The DNN cannot be traced into a graph; the message names the cause."""


@contextlib.contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Suppress warnings about torch's internals, which users cannot change, and those of `loggers`."""
    levels = {logger: logger.level for logger in map(logging.getLogger, loggers)}
    try:
        for logger in levels:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


def trace(
    module: nn.Module, example_inputs: tuple[torch.Tensor, ...], *, fold_batch_norm: bool = False
) -> fx.GraphModule:
    """Trace `module` into a flat, functional, device-free graph.

    example_inputs: positional inputs with the shapes and types that it will always get. The returned graph takes them
    as its placeholders and returns a flat tuple of the module's output tensors, in the order in which tuples and dicts
    hold them (None and numbers among the outputs are left out). Parameters and buffers are shared with `module`, not
    copied, except for convolutions into which `fold_batch_norm` folds a batch norm. What depends on neither inputs nor
    parameters (anchors, grids, masks) is computed now and becomes a buffer, so that ``.to(device)`` moves all of it.
    Raises TraceError.
    """
    graph_module = _export(module, example_inputs)
    graph = graph_module.graph
    _flatten_outputs(graph)
    for node in list(graph.nodes):
        # Such nodes assert the device and layout of the export, and would fail after a move to another device.
        if node.target is aten._assert_tensor_metadata.default:
            graph.erase_node(node)
    _fold_constants(graph_module)
    graph.eliminate_dead_code()  # removes folded nodes and their device arguments
    _forget_devices(graph)
    _move_selections_to_source(graph)
    graph_module.recompile()
    if fold_batch_norm:
        fold_batch_norms(graph_module)
    return graph_module


def import_export() -> None:
    """Import what the first call of :func:`trace` imports, which takes a second or two, by tracing a small module."""
    trace(nn.Conv2d(3, 1, 1), (torch.zeros(1, 3, 1, 1),))


def _export(module: nn.Module, example_inputs: tuple[torch.Tensor, ...]) -> fx.GraphModule:
    try:
        # For some errors torch.export prints the graph traced so far.
        with contextlib.redirect_stderr(io.StringIO()), quiet(*_LOGGERS), torch.no_grad():
            program = torch.export.export(module, example_inputs, strict=False)
            # Without decompositions: functionalize, but keep convolution, batch norm and linear as single operations.
            graph_module = program.run_decompositions({}).module(check_guards=False)
    except Exception as error:
        raise TraceError(f"torch.export cannot trace {type(module).__name__}: {summarize_error(error)}") from error
    assert isinstance(graph_module, fx.GraphModule)
    return graph_module


def _flatten_outputs(graph: fx.Graph) -> None:
    output = graph.output_node()
    flat = tuple(leaf for leaf in pytree.tree_leaves(output.args[0]) if isinstance(leaf, fx.Node))
    if not flat:
        raise TraceError("the DNN returns no tensor")
    output.args = (flat,)
    graph.set_codegen(fx.graph.CodeGen())


def _fold_constants(graph_module: fx.GraphModule) -> None:
    """Replace values that depend on neither inputs nor parameters by buffers."""
    graph = graph_module.graph
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            value = attribute(graph_module, node)
            written = any(is_write(user) for user in node.users)
            if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter) and not written:
                values[node] = value
        elif is_repeatable(node) and all(source in values for source in node.all_input_nodes):
            with torch.no_grad():
                args = fx.node.map_arg(node.args, values.__getitem__)
                kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
                values[node] = node.target(*args, **kwargs)
    for node, value in values.items():
        needed = any(user not in values for user in node.users)
        if node.op == "call_function" and needed and isinstance(value, torch.Tensor):
            with graph.inserting_before(node):
                node.replace_all_uses_with(_add_constant(graph_module, value))


def fold_batch_norms(graph_module: fx.GraphModule) -> None:
    """Fold batch norms into the weights of the convolutions before them, and remove them.

    Only if the batch norm is the only user of a plain 2D convolution, and all weights and statistics are stored ones.
    """
    graph = graph_module.graph
    for node in graph.nodes:
        if node.target is not aten._native_batch_norm_legit_no_training.default:
            continue
        convolution, *statistics, _, epsilon = node.args
        if convolution.target is not aten.conv2d.default or len(convolution.users) != 1:
            continue
        image, weight, bias, *geometry = (*convolution.args, None)[: max(3, len(convolution.args))]
        sources = (weight, bias, *statistics)
        if any(source is not None and source.op != "get_attr" for source in sources):
            continue
        w, b, gamma, beta, mean, variance = (source and attribute(graph_module, source) for source in sources)
        folded = nn.utils.fusion.fuse_conv_bn_weights(w, b, mean, variance, epsilon, gamma, beta)
        with graph.inserting_before(convolution):
            convolution.args = (image, *(_add_constant(graph_module, parameter) for parameter in folded), *geometry)
        for selection in [user for user in node.users if is_selection(user)]:
            if selection.args[1] == 0:
                selection.replace_all_uses_with(convolution)
    graph.eliminate_dead_code()
    graph_module.recompile()


def _add_constant(graph_module: fx.GraphModule, value: torch.Tensor) -> fx.Node:
    """Register a buffer with the given value; its node is inserted at the graph's insertion point."""
    graph = graph_module.graph
    name = f"_folded_{sum(1 for name, _ in graph_module.named_buffers(recurse=False) if name.startswith('_folded_'))}"
    graph_module.register_buffer(name, value.detach().contiguous(), persistent=False)
    return graph.get_attr(name)


def _forget_devices(graph: fx.Graph) -> None:
    """Remove the device arguments that the exporter added: operations then run on their input's device."""
    for node in list(graph.nodes):
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        kwargs = {key: value for key, value in node.kwargs.items() if key not in ("device", "pin_memory")}
        has_tensor = any(argument.type.isSubtypeOf(torch._C.TensorType.get()) for argument in _arguments(node.target))
        if len(kwargs) != len(node.kwargs) and has_tensor:
            node.kwargs = kwargs
        if node.target is aten.to.device:
            source, _, dtype, *rest = node.args
            node.target, node.args = aten.to.dtype, (source, dtype, *rest)
        elif any(isinstance(argument, torch.device) for argument in (*node.args, *node.kwargs.values())):
            raise TraceError(f"operation {node.target} makes a tensor of run-time size on a fixed device")


def _arguments(operation: torch._ops.OpOverload) -> Iterable[Any]:
    return operation._schema.arguments


def _move_selections_to_source(graph: fx.Graph) -> None:
    """Move every item selection directly after the operation that made the tuple, so that only tensors are carried."""
    for node in list(graph.nodes):
        if is_selection(node):
            source = node.args[0]
            while is_selection(source.next) and source.next is not node:
                source = source.next
            if source.next is not node:
                source.append(node)


def is_selection(node: fx.Node) -> bool:
    """Whether the node only selects one item of another node's tuple or list."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def is_repeatable(node: fx.Node) -> bool:
    """Whether the node is deterministic and has no side effect."""
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return not (node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags)
    return is_selection(node)


def is_write(node: fx.Node) -> bool:
    """Whether the node writes into one of its inputs (a model with state between frames)."""
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def attribute(graph_module: fx.GraphModule, node: fx.Node) -> Any:
    """The parameter, buffer or submodule that a get_attr node refers to."""
    value: Any = graph_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def tensor_of(value: Argument) -> torch.Tensor | None:
    """The (fake) tensor of the node's traced value; None for anything else."""
    traced = value.meta.get("val") if isinstance(value, fx.Node) else None
    return traced if isinstance(traced, torch.Tensor) else None
