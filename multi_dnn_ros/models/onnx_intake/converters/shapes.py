"""Converters of operators that change shapes. Sizes, axes and pads must be constants."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from multi_dnn_ros.models.onnx_intake.converters.registration import (
    OnnxGraph,
    OnnxNode,
    OperationConverterResult,
    attribute_or_input,
    constant,
    converter,
    operator_result,
    shape_of,
)


def reshape(source: torch.Tensor, sizes: list[int], allow_zero: bool) -> torch.Tensor:
    """Reshape: -1 is inferred; 0 copies the axis unless allow_zero."""
    return source.reshape([source.shape[i] if size == 0 and not allow_zero else size for i, size in enumerate(sizes)])


def expand(source: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Expand: broadcasts in both directions."""
    return source.expand(torch.broadcast_shapes(source.shape, tuple(sizes)))


def slice_axes(source: torch.Tensor, ranges: list[tuple[int, int, int, int]]) -> torch.Tensor:
    """Slice; ranges: (axis, start, end, step), with the meaning of Python's slices."""
    for axis, start, end, step in ranges:
        length = source.shape[axis]
        if step < 0:
            # In the reversed axis, index i is length - 1 - i.
            first, last, _ = slice(start, end, step).indices(length)
            source = source.flip(axis)
            start, end, step = length - 1 - first, length - 1 - last, -step
        index: list[slice] = [slice(None)] * source.ndim
        index[axis] = slice(*slice(start, end, step).indices(length))
        source = source[tuple(index)]
    return source


def pad(source: torch.Tensor, pads: list[tuple[int, int]], mode: str, value: float) -> torch.Tensor:
    """Pad; pads: (begin, end) of each axis. Negative amounts crop."""
    flat = [amount for pair in reversed(pads) for amount in pair]
    if mode == "constant":
        return F.pad(source, flat, value=value)
    for axis, (begin, end) in enumerate(pads):
        length = source.shape[axis]
        if (begin, end) == (0, 0):
            continue
        index = torch.arange(-begin, length + end, device=source.device)
        if mode == "edge":
            index = index.clamp(0, length - 1)
        elif mode == "wrap":
            index = index % length
        else:  # reflect, without repeating the edge
            period = max(2 * (length - 1), 1)
            index = index % period
            index = torch.minimum(index, period - index) if length > 1 else index * 0
        source = source.index_select(axis, index)
    return source


def squeeze(source: torch.Tensor, axes: list[int] | None) -> torch.Tensor:
    """Squeeze; None: every axis of length 1."""
    return source.squeeze() if axes is None else source.squeeze(tuple(axes))


def unsqueeze(source: torch.Tensor, axes: list[int]) -> torch.Tensor:
    """Unsqueeze; axes: indices of axes of the result."""
    rank = source.ndim + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        source = source.unsqueeze(axis)
    return source


def split(
    source: torch.Tensor, sizes: list[int] | None, count: int, axis: int
) -> tuple[torch.Tensor, ...] | torch.Tensor:
    """Split into `sizes`, else into `count` equal parts, of which the last may be smaller."""
    if count == 1:
        return source
    parts: list[int] | int = -(-source.shape[axis] // count) if sizes is None else sizes
    return tuple(torch.split(source, parts, dim=axis))


def tile(source: torch.Tensor, repeats: list[int]) -> torch.Tensor:
    """Tile: repeats of each axis."""
    return source.repeat(repeats)


@converter("Reshape")
def _reshape(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    sizes = attribute_or_input(node, graph, "shape", 1)
    allow_zero = bool(node.attributes.get("allowzero", 0))
    return operator_result(node, reshape, node.input_values[:1], sizes=sizes, allow_zero=allow_zero)


@converter("Expand")
def _expand(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, expand, node.input_values[:1], sizes=constant(node, graph, 1))


@converter("Slice")
def _slice(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    starts = attribute_or_input(node, graph, "starts", 1)
    ends = attribute_or_input(node, graph, "ends", 2)
    axes = attribute_or_input(node, graph, "axes", 3) or list(range(len(starts)))
    steps = constant(node, graph, 4) or [1] * len(starts)
    ranges = list(zip(axes, starts, ends, steps, strict=True))
    return operator_result(node, slice_axes, node.input_values[:1], ranges=ranges)


@converter("Pad")
def _pad(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    flat = attribute_or_input(node, graph, "pads", 1)
    value = node.attributes.get("value", constant(node, graph, 2, 0.0))
    value = value[0] if isinstance(value, list) else value
    rank = len(shape_of(graph, node.input_values[0]))
    axes = constant(node, graph, 3) or list(range(rank))
    pads = [(0, 0)] * rank
    for position, axis in enumerate(axes):
        pads[axis] = (flat[position], flat[len(axes) + position])
    mode = node.attributes.get("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise NotImplementedError(f"operator Pad (node {node.name!r}): mode {mode!r}")
    return operator_result(node, pad, node.input_values[:1], pads=pads, mode=mode, value=value)


@converter("Squeeze")
def _squeeze(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, squeeze, node.input_values[:1], axes=attribute_or_input(node, graph, "axes", 1))


@converter("Unsqueeze")
def _unsqueeze(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, unsqueeze, node.input_values[:1], axes=attribute_or_input(node, graph, "axes", 1))


@converter("Split")
def _split(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    sizes = attribute_or_input(node, graph, "split", 1)
    axis, count = node.attributes.get("axis", 0), len(node.output_values)
    return operator_result(node, split, node.input_values[:1], sizes=sizes, count=count, axis=axis)


@converter("Tile")
def _tile(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, tile, node.input_values[:1], repeats=constant(node, graph, 1))
