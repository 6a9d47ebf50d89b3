"""Converters of operators that work on each element, and of reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from multi_dnn_ros.models.onnx_intake.converters.registration import (
    TENSOR_TYPE_TO_TORCH_TYPE,
    OnnxGraph,
    OnnxNode,
    OperationConverterResult,
    attribute_or_input,
    converter,
    operator_result,
)


def cast(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cast; floats are truncated to integers."""
    return source.to(dtype)


def cast_like(source: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """CastLike."""
    return source.to(other.dtype)


def clip(source: torch.Tensor, lower: float | None, upper: float | None) -> torch.Tensor:
    """Clip; None: no bound."""
    return source if lower is None and upper is None else source.clamp(lower, upper)


def shrink(source: torch.Tensor, bound: float, bias: float) -> torch.Tensor:
    """Shrink."""
    zero = torch.zeros_like(source)
    return torch.where(source < -bound, source + bias, torch.where(source > bound, source - bias, zero))


def reduce(
    source: torch.Tensor, operation: Callable[..., torch.Tensor], axes: list[int] | None, keep: bool
) -> torch.Tensor:
    """A reduction over `axes` (None: all)."""
    chosen = tuple(range(source.ndim)) if axes is None else tuple(axes)
    return operation(source, chosen, keep) if chosen else source


def _product(source: torch.Tensor, axes: tuple[int, ...], keep: bool) -> torch.Tensor:
    for axis in sorted((axis % source.ndim for axis in axes), reverse=True):
        source = source.prod(axis, keepdim=keep)
    return source


_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "ReduceSum": lambda source, axes, keep: source.sum(axes, keepdim=keep, dtype=source.dtype),
    "ReduceMean": lambda source, axes, keep: source.mean(axes, keepdim=keep),
    "ReduceMax": lambda source, axes, keep: source.amax(axes, keepdim=keep),
    "ReduceMin": lambda source, axes, keep: source.amin(axes, keepdim=keep),
    "ReduceProd": _product,
    "ReduceL1": lambda source, axes, keep: source.abs().sum(axes, keepdim=keep),
    "ReduceL2": lambda source, axes, keep: source.square().sum(axes, keepdim=keep).sqrt(),
    "ReduceLogSum": lambda source, axes, keep: source.sum(axes, keepdim=keep).log(),
    "ReduceLogSumExp": lambda source, axes, keep: source.logsumexp(axes, keepdim=keep),
    "ReduceSumSquare": lambda source, axes, keep: source.square().sum(axes, keepdim=keep),
}
_UNARY: dict[str, Callable[..., torch.Tensor]] = {
    "Acosh": torch.acosh,
    "Asinh": torch.asinh,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Cosh": torch.cosh,
    "Mish": F.mish,
    "Sinh": torch.sinh,
}
_BINARY: dict[str, Callable[..., torch.Tensor]] = {
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
}


@converter(*_UNARY, *_BINARY)
def _plain(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, {**_UNARY, **_BINARY}[node.operation_type])


@converter(*_REDUCTIONS)
def _reduce(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    axes = attribute_or_input(node, graph, "axes", 1)
    if not axes:  # given as an empty list, or not given
        axes = [] if node.attributes.get("noop_with_empty_axes", 0) else None
    keep = bool(node.attributes.get("keepdims", 1))
    return operator_result(
        node, reduce, node.input_values[:1], operation=_REDUCTIONS[node.operation_type], axes=axes, keep=keep
    )


@converter("Cast")
def _cast(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    kind = node.attributes["to"]
    if kind not in TENSOR_TYPE_TO_TORCH_TYPE:
        raise NotImplementedError(f"operator Cast (node {node.name!r}): to data type {kind}")
    return operator_result(node, cast, dtype=TENSOR_TYPE_TO_TORCH_TYPE[kind])


@converter("CastLike")
def _cast_like(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, cast_like)


@converter("Clip")
def _clip(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    bounds: dict[str, Any] = {}
    for index, (key, name) in enumerate((("lower", "min"), ("upper", "max"))):
        given = attribute_or_input(node, graph, name, index + 1)
        bounds[key] = given[0] if isinstance(given, list) else given
    return operator_result(node, clip, node.input_values[:1], **bounds)


@converter("Gelu")
def _gelu(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, F.gelu, approximate=node.attributes.get("approximate", "none"))


@converter("ThresholdedRelu")
def _thresholded_relu(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, F.threshold, threshold=node.attributes.get("alpha", 1.0), value=0.0)


@converter("Shrink")
def _shrink(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    options = {"bound": node.attributes.get("lambd", 0.5), "bias": node.attributes.get("bias", 0.0)}
    return operator_result(node, shrink, **options)
