"""Branches of a traced graph: which operations may run at the same time, and the longest chain of operations.

Everything here is a pure function of a graph or of the operations extracted from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch.utils import _pytree as pytree

from multi_dnn_ros.models.operations import bytes_of
from multi_dnn_ros.models.trace import attribute, is_repeatable, is_selection

aten = torch.ops.aten

#: Nominal GPU at batch 1, to weigh the operations of one graph against each other; only ratios matter. The fixed part
#: is the time of one small kernel in a captured graph (2.5 us on an H200).
_FLOPS_PER_S = 50e12
_BYTES_PER_S = 1e12
_OPERATION_S = 2.5e-6

#: Operations that never launch a kernel: their result is a view of their only input. Operations that return either a
#: view or a copy, such as reshape, are not among them.
_VIEWS = frozenset(
    {
        aten.view.default, aten._unsafe_view.default, aten.alias.default, aten.detach.default, aten.permute.default,
        aten.transpose.int, aten.t.default, aten.select.int, aten.slice.Tensor, aten.expand.default,
        aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.split.Tensor,
        aten.split_with_sizes.default, aten.unbind.int, aten.chunk.default,
    }
)  # fmt: skip
#: Operations that return a view or a copy; in most graphs a view, which takes no time.
_RESHAPES = frozenset({aten.reshape.default, aten.flatten.using_ints})
_PRODUCTS = frozenset({"matmul", "mm", "bmm", "baddbmm", "addmm", "scaled_dot_product_attention"})


class SerialGraphError(ValueError):
    """The operations of a graph must run in order; the message names the first reason."""


@dataclass(frozen=True)
class DeviceOperation:
    """An operation that launches work on the device.

    sources: names of the operations whose results it reads, without duplicates. cost_s: its time while nothing else
    runs.
    """

    name: str
    sources: tuple[str, ...]
    cost_s: float


def origins(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For each node except the output: the node whose work must be finished before its value can be read.

    An operation that launches work, an input and a parameter are their own origins; a view or a selection has the
    origin of what it reads.
    """
    found: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "output":
            continue
        sources = node.all_input_nodes
        free = is_selection(node) or node.target in _VIEWS
        found[node] = found[sources[0]] if free and len(sources) == 1 else node
    return found


def device_operations(
    graph_module: fx.GraphModule, cost: Callable[[fx.Node], float] | None = None
) -> tuple[DeviceOperation, ...]:
    """The operations of a graph of :func:`multi_dnn_ros.models.trace.trace` that launch work, in their order.

    cost: seconds of an operation; None: estimated from the shapes (see estimated_s). Raises SerialGraphError if an
    operation writes into a tensor, is random, or is no ATen operation, because the order then matters.
    """
    origin = origins(graph_module.graph)
    found = []
    for node, launcher in origin.items():
        if node.op in ("placeholder", "get_attr"):
            continue
        if not is_repeatable(node) and not _is_inactive_dropout(node):
            raise SerialGraphError(f"operation {node.name} ({node.target}) has side effects")
        if launcher is not node:
            continue
        sources = dict.fromkeys(origin[source] for source in node.all_input_nodes)
        names = tuple(source.name for source in sources if source.op == "call_function")
        found.append(DeviceOperation(node.name, names, cost(node) if cost else estimated_s(graph_module, node)))
    return tuple(found)


def estimated_s(graph_module: fx.GraphModule, node: fx.Node) -> float:
    """Seconds of an operation on a nominal GPU, from the traced shapes: the longer of arithmetic and memory traffic.

    Convolutions, linear layers and matrix products count their multiply-accumulates; others only their bytes. Reshapes
    take no time: precision fp16 replaces all views by them, and few of these copy.
    """
    if node.target in _RESHAPES:
        return 0.0
    read = [tensor for source in node.all_input_nodes if (tensor := _shape_of(graph_module, source)) is not None]
    written = [leaf for leaf in pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
    moved = sum(map(bytes_of, (*read, *written)))
    flops = 2.0 * _macs(graph_module, node, read, written)
    return _OPERATION_S + max(flops / _FLOPS_PER_S, moved / _BYTES_PER_S)


def levels(operations: Iterable[DeviceOperation]) -> dict[str, int]:
    """Dependency level by name: 0 for operations without sources, else one more than the highest of their sources."""
    found: dict[str, int] = {}
    for operation in operations:
        found[operation.name] = 1 + max((found[source] for source in operation.sources), default=-1)
    return found


def remaining_s(operations: Sequence[DeviceOperation]) -> dict[str, float]:
    """By name: seconds of the longest chain that starts with the operation, the operation included."""
    after = readers(operations)
    found: dict[str, float] = {}
    for operation in reversed(operations):
        longest = max((found[reader] for reader in after[operation.name]), default=0.0)
        found[operation.name] = operation.cost_s + longest
    return found


def branches(operations: Sequence[DeviceOperation]) -> tuple[tuple[str, ...], ...]:
    """The operations as runs between forks and joins, each in order.

    A run continues while an operation has one reader and this reader has one source.
    """
    after = readers(operations)
    runs: list[list[str]] = []
    run_of: dict[str, list[str]] = {}
    for operation in operations:
        continues = len(operation.sources) == 1 and len(after[operation.sources[0]]) == 1
        run = run_of[operation.sources[0]] if continues else []
        if not run:
            runs.append(run)
        run.append(operation.name)
        run_of[operation.name] = run
    return tuple(map(tuple, runs))


def readers(operations: Iterable[DeviceOperation]) -> Mapping[str, tuple[str, ...]]:
    """By name: the operations that read its result."""
    found: dict[str, list[str]] = {}
    for operation in operations:
        found[operation.name] = []
        for source in operation.sources:
            found[source].append(operation.name)
    return {name: tuple(names) for name, names in found.items()}


def _is_inactive_dropout(node: fx.Node) -> bool:
    """Whether it is a dropout in eval mode, which returns its input. PyTorch tags dropout as random in any mode."""
    return node.target is aten.dropout.default and len(node.args) == 3 and node.args[2] is False


def _shape_of(graph_module: fx.GraphModule, node: fx.Node) -> torch.Tensor | None:
    value = attribute(graph_module, node) if node.op == "get_attr" else node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def _macs(
    graph_module: fx.GraphModule, node: fx.Node, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]
) -> int:
    results = sum(tensor.numel() for tensor in written)
    weights = [
        weight
        for source in node.all_input_nodes
        if source.op == "get_attr" and (weight := _shape_of(graph_module, source)) is not None and weight.ndim > 1
    ]
    if weights and weights[0].shape[0]:  # output channels or features first
        return results * (weights[0].numel() // weights[0].shape[0])
    if str(getattr(node.target, "_opname", "")) in _PRODUCTS and read and read[0].ndim:
        return results * int(read[0].shape[-1])
    return 0
