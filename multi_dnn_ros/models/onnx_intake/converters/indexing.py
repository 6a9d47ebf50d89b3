"""Converters of operators that read and write by index."""

from __future__ import annotations

import math
from typing import Any

import torch

from multi_dnn_ros.models.onnx_intake.converters.registration import (
    OnnxGraph,
    OnnxNode,
    OperationConverterResult,
    constant,
    converter,
    operator_result,
)

_REDUCTIONS = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}


def gather(source: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    """Gather, as numpy.take."""
    axis %= source.ndim
    index: tuple[Any, ...] = (*[slice(None)] * axis, indices.long())
    return source[index]


def select(source: torch.Tensor, index: int, axis: int) -> torch.Tensor:
    """Gather by one constant index."""
    return source.select(axis, index)


def gather_elements(source: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    """GatherElements; indices count from the end where they are negative."""
    return source.gather(axis, _from_front(indices, source.shape[axis]))


def gather_nd(source: torch.Tensor, indices: torch.Tensor, batch_axes: int) -> torch.Tensor:
    """GatherND: the last axis of `indices` holds coordinates in the axes after the first `batch_axes`."""
    coordinates = indices.long()
    if not batch_axes:
        return source[coordinates.unbind(-1)]
    batch = source.shape[:batch_axes]
    count = math.prod(batch)
    kept = indices.shape[batch_axes:-1]
    flat = coordinates.reshape(count, -1, indices.shape[-1])
    rows = torch.arange(count, device=source.device).unsqueeze(1)
    found = source.reshape(count, *source.shape[batch_axes:])[(rows, *flat.unbind(-1))]
    return found.reshape(*batch, *kept, *source.shape[batch_axes + indices.shape[-1] :])


def scatter_nd(source: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, reduction: str) -> torch.Tensor:
    """ScatterND: a copy of `source` with `updates` at the coordinates in the last axis of `indices`."""
    coordinates = indices.long()
    if reduction in ("none", "add"):
        return source.index_put(coordinates.unbind(-1), updates, accumulate=reduction == "add")
    depth = indices.shape[-1]
    sizes, rest = source.shape[:depth], source.shape[depth:]
    rows = torch.zeros_like(coordinates[..., 0])
    for position, size in enumerate(sizes):
        rows = rows * size + _from_front(coordinates[..., position], size)
    flat = source.reshape(math.prod(sizes), math.prod(rest))
    index = rows.reshape(-1, 1).expand(-1, flat.shape[1])
    changed = flat.scatter_reduce(0, index, updates.reshape(-1, flat.shape[1]), _REDUCTIONS[reduction])
    return changed.reshape(source.shape)


def scatter_elements(
    source: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, axis: int, reduction: str
) -> torch.Tensor:
    """ScatterElements: a copy of `source` with each update at its own index along `axis`."""
    index = _from_front(indices, source.shape[axis])
    if reduction == "none":
        return source.scatter(axis, index, updates)
    return source.scatter_reduce(axis, index, updates, _REDUCTIONS[reduction])


def top_k(
    source: torch.Tensor, count: int, axis: int, largest: bool, in_order: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """TopK: (values, indices)."""
    values, indices = source.topk(count, dim=axis, largest=largest, sorted=in_order)
    return values, indices


def triangle(source: torch.Tensor, diagonal: int, upper: bool) -> torch.Tensor:
    """Trilu: the rest is zero."""
    return source.triu(diagonal) if upper else source.tril(diagonal)


def one_hot(indices: torch.Tensor, depth: int, off: float, on: float, axis: int) -> torch.Tensor:
    """OneHot along a new axis."""
    axis %= indices.ndim + 1
    classes = torch.arange(depth, device=indices.device).reshape(
        [-1 if i == axis else 1 for i in range(indices.ndim + 1)]
    )
    chosen = _from_front(indices, depth).unsqueeze(axis) == classes
    return torch.where(chosen, on, off)


def _from_front(indices: torch.Tensor, length: int) -> torch.Tensor:
    """The same positions as indices from the front; negative indices count from the end."""
    indices = indices.long()
    return torch.where(indices < 0, indices + length, indices)


@converter("Gather")
def _gather(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    axis = node.attributes.get("axis", 0)
    if node.input_values[1] in graph.initializers:
        index = constant(node, graph, 1)
        if isinstance(index, int):
            return operator_result(node, select, node.input_values[:1], index=index, axis=axis)
    return operator_result(node, gather, axis=axis)


@converter("GatherElements")
def _gather_elements(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, gather_elements, axis=node.attributes.get("axis", 0))


@converter("GatherND")
def _gather_nd(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, gather_nd, batch_axes=node.attributes.get("batch_dims", 0))


@converter("ScatterND")
def _scatter_nd(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, scatter_nd, reduction=node.attributes.get("reduction", "none"))


@converter("ScatterElements", "Scatter")
def _scatter_elements(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    reduction = node.attributes.get("reduction", "none")
    return operator_result(node, scatter_elements, axis=node.attributes.get("axis", 0), reduction=reduction)


@converter("TopK")
def _top_k(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    given = node.attributes["k"] if "k" in node.attributes else constant(node, graph, 1)
    count = given[0] if isinstance(given, list) else given
    options = {
        "axis": node.attributes.get("axis", -1),
        "largest": bool(node.attributes.get("largest", 1)),
        "in_order": bool(node.attributes.get("sorted", 1)),
    }
    return operator_result(node, top_k, node.input_values[:1], count=count, **options)


@converter("Trilu")
def _trilu(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    diagonal = constant(node, graph, 1, 0)
    diagonal = diagonal[0] if isinstance(diagonal, list) else diagonal
    upper = bool(node.attributes.get("upper", 1))
    return operator_result(node, triangle, node.input_values[:1], diagonal=diagonal, upper=upper)


@converter("OneHot")
def _one_hot(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    depth = constant(node, graph, 1)
    off, on = constant(node, graph, 2)
    options = {"depth": int(depth[0] if isinstance(depth, list) else depth), "axis": node.attributes.get("axis", -1)}
    return operator_result(node, one_hot, node.input_values[:1], off=off, on=on, **options)


def cumulative_sum(source: torch.Tensor, axis: int, exclusive: bool, reverse: bool) -> torch.Tensor:
    """CumSum; `exclusive`: without the element itself, `reverse`: from the end."""
    if reverse:
        source = source.flip(axis)
    total = source.cumsum(axis, dtype=source.dtype)
    if exclusive:
        total = total - source
    return total.flip(axis) if reverse else total


@converter("CumSum")
def _cumulative_sum(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    # onnx2torch 1.5.15 uses 1 as the default of `reverse`; ONNX defines 0.
    options = {name: bool(node.attributes.get(name, 0)) for name in ("exclusive", "reverse")}
    axis = constant(node, graph, 1)
    axis = axis[0] if isinstance(axis, list) else axis
    return operator_result(node, cumulative_sum, node.input_values[:1], axis=axis, **options)
