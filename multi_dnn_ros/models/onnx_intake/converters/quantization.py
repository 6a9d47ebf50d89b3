"""Converters of QuantizeLinear and DequantizeLinear: the rounding of a quantized network, in floating point.

Quantized weights are turned into floats when the graph is folded. Between the two operators of an activation the
integers are kept in a float tensor, so that the result is that of the quantized network on any device.
"""

from __future__ import annotations

import torch
from onnx import TensorProto

from multi_dnn_ros.models.onnx_intake.converters.registration import (
    OnnxGraph,
    OnnxNode,
    OperationConverterResult,
    constant_tensor,
    converter,
    has_input,
    operator_result,
)

_RANGES = {
    TensorProto.UINT8: (0, 255),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT16: (0, 65535),
    TensorProto.INT16: (-32768, 32767),
}
_ONNX_TYPES = {
    torch.uint8: TensorProto.UINT8,
    torch.int8: TensorProto.INT8,
    torch.uint16: TensorProto.UINT16,
    torch.int16: TensorProto.INT16,
}


def quantize(
    source: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None = None, *, axis: int, lowest: int, highest: int
) -> torch.Tensor:
    """QuantizeLinear: rounds half to even, as torch.round does."""
    steps = torch.round(source / _along(scale, source, axis))
    return (steps if zero is None else steps + _along(zero, source, axis)).clamp(lowest, highest)


def dequantize(
    source: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None = None, *, axis: int
) -> torch.Tensor:
    """DequantizeLinear."""
    steps = source.to(scale.dtype)
    return (steps if zero is None else steps - _along(zero, source, axis)) * _along(scale, source, axis)


def _along(values: torch.Tensor, source: torch.Tensor, axis: int) -> torch.Tensor:
    """`values`, one for the tensor or one for each index of `axis`, in float32 and shaped to broadcast."""
    values = values.to(torch.float32)
    if values.numel() == 1:
        return values.reshape(())
    return values.reshape([-1 if i == axis % source.ndim else 1 for i in range(source.ndim)])


def _axis(node: OnnxNode) -> int:
    if node.attributes.get("block_size", 0):
        raise NotImplementedError(f"operator {node.operation_type} (node {node.name!r}): block_size")
    axis: int = node.attributes.get("axis", 1)
    return axis


@converter("QuantizeLinear")
def _quantize(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    kind = node.attributes.get("output_dtype", 0) or TensorProto.UINT8
    if has_input(node, 2):
        kind = _ONNX_TYPES.get(constant_tensor(node, graph, 2).dtype, TensorProto.UNDEFINED)
    if kind not in _RANGES:
        raise NotImplementedError(f"operator QuantizeLinear (node {node.name!r}): allowed: 8 and 16 bit integers")
    lowest, highest = _RANGES[kind]
    names = [name for name in node.input_values if name]
    return operator_result(node, quantize, names, axis=_axis(node), lowest=lowest, highest=highest)


@converter("DequantizeLinear")
def _dequantize(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, dequantize, [name for name in node.input_values if name], axis=_axis(node))
