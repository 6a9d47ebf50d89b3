"""Converters of layers: normalization, sampling, pooling."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from multi_dnn_ros.models.onnx_intake.converters.registration import (
    OnnxGraph,
    OnnxNode,
    OperationConverterResult,
    converter,
    get_converter,
    has_input,
    operator_result,
)

_POOLS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
#: GridSample's modes by the names of opset 16 and of opset 20.
_SAMPLING = {
    "bilinear": "bilinear",
    "linear": "bilinear",
    "bicubic": "bicubic",
    "cubic": "bicubic",
    "nearest": "nearest",
}


def layer_norm(
    source: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None, *, axis: int, epsilon: float
) -> torch.Tensor:
    """LayerNormalization over `axis` and all axes after it."""
    shape = source.shape[axis:]
    if scale.shape == shape and (bias is None or bias.shape == shape):
        return F.layer_norm(source, shape, scale, bias, epsilon)
    normalized = F.layer_norm(source, shape, eps=epsilon) * scale
    return normalized if bias is None else normalized + bias


def group_norm(
    source: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, groups: int, epsilon: float
) -> torch.Tensor:
    """GroupNormalization; scale and bias for each channel (opset 21) or for each group (opset 18)."""
    repeats = source.shape[1] // scale.shape[0]
    if repeats > 1:
        scale, bias = scale.repeat_interleave(repeats), bias.repeat_interleave(repeats)
    return F.group_norm(source, groups, scale, bias, epsilon)


def rms_norm(source: torch.Tensor, scale: torch.Tensor, axis: int, epsilon: float) -> torch.Tensor:
    """RMSNormalization over `axis` and all axes after it."""
    axes = list(range(axis % source.ndim, source.ndim))
    return source * torch.rsqrt(source.square().mean(axes, keepdim=True) + epsilon) * scale


def lp_norm(source: torch.Tensor, axis: int, order: int) -> torch.Tensor:
    """LpNormalization."""
    normalized: torch.Tensor = source / torch.linalg.vector_norm(source, order, axis, keepdim=True)
    return normalized


def standardize(source: torch.Tensor, axes: list[int]) -> torch.Tensor:
    """MeanVarianceNormalization."""
    centered = source - source.mean(axes, keepdim=True)
    return centered / (centered.square().mean(axes, keepdim=True).sqrt() + 1e-9)


def grid_sample(source: torch.Tensor, grid: torch.Tensor, mode: str, padding: str, corners: bool) -> torch.Tensor:
    """GridSample."""
    return F.grid_sample(source, grid, mode, padding, corners)


def average_pool(
    source: torch.Tensor, kernel: list[int], stride: list[int], pads: list[tuple[int, int]], count_pads: bool
) -> torch.Tensor:
    """AveragePool with different padding on each side."""
    pool = _POOLS[len(kernel)]
    flat = [amount for pair in reversed(pads) for amount in pair]
    mean = pool(F.pad(source, flat), kernel, stride)
    if count_pads:
        return mean
    inside = pool(F.pad(torch.ones_like(source[:1, :1]), flat), kernel, stride)
    return mean / inside


def global_max(source: torch.Tensor) -> torch.Tensor:
    """GlobalMaxPool."""
    return source.amax(tuple(range(2, source.ndim)), keepdim=True)


def space_to_depth(source: torch.Tensor, block: int) -> torch.Tensor:
    """SpaceToDepth: channels in the order (row in block, column in block, channel)."""
    batch, channels, height, width = source.shape
    blocks = source.reshape(batch, channels, height // block, block, width // block, block)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(batch, channels * block * block, height // block, width // block)


@converter("LayerNormalization")
def _layer_norm(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    if len([name for name in node.output_values if name]) > 1:
        raise NotImplementedError(f"operator LayerNormalization (node {node.name!r}): outputs Mean and InvStdDev")
    options = {"axis": node.attributes.get("axis", -1), "epsilon": node.attributes.get("epsilon", 1e-5)}
    names = [name for name in node.input_values if name]
    return operator_result(node, layer_norm, names, **options)


@converter("RMSNormalization")
def _rms_norm(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    options = {"axis": node.attributes.get("axis", -1), "epsilon": node.attributes.get("epsilon", 1e-5)}
    return operator_result(node, rms_norm, **options)


@converter("GroupNormalization")
def _group_norm(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    options = {"groups": node.attributes["num_groups"], "epsilon": node.attributes.get("epsilon", 1e-5)}
    return operator_result(node, group_norm, **options)


@converter("LpNormalization")
def _lp_norm(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, lp_norm, axis=node.attributes.get("axis", -1), order=node.attributes.get("p", 2))


@converter("MeanVarianceNormalization")
def _standardize(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, standardize, axes=node.attributes.get("axes", [0, 2, 3]))


@converter("GridSample")
def _grid_sample(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    mode = node.attributes.get("mode", "linear")
    if mode not in _SAMPLING:
        raise NotImplementedError(f"operator GridSample (node {node.name!r}): mode {mode!r}")
    options = {
        "padding": node.attributes.get("padding_mode", "zeros"),
        "corners": bool(node.attributes.get("align_corners", 0)),
    }
    return operator_result(node, grid_sample, mode=_SAMPLING[mode], **options)


_onnx2torch_average_pool = get_converter("AveragePool", 11)


@converter("AveragePool")
def _average_pool(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    kernel: list[int] = node.attributes["kernel_shape"]
    rank = len(kernel)
    pads = node.attributes.get("pads", [0] * 2 * rank)
    if any(step != 1 for step in node.attributes.get("dilations", [])):
        raise NotImplementedError(f"operator AveragePool (node {node.name!r}): dilations other than 1")
    if pads[:rank] == pads[rank:]:
        return _onnx2torch_average_pool(node, graph)
    if node.attributes.get("ceil_mode", 0):
        raise NotImplementedError(f"operator AveragePool (node {node.name!r}): ceil_mode with unequal pads")
    options = {
        "kernel": kernel,
        "stride": node.attributes.get("strides", [1] * rank),
        "pads": list(zip(pads[:rank], pads[rank:], strict=True)),
        "count_pads": bool(node.attributes.get("count_include_pad", 0)),
    }
    return operator_result(node, average_pool, **options)


@converter("GlobalMaxPool")
def _global_max(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, global_max)


@converter("SpaceToDepth")
def _space_to_depth(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, space_to_depth, block=node.attributes["blocksize"])


@converter("Dropout")
def _dropout(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    """The identity, as at inference. Raises NotImplementedError if the operator is in training mode."""
    training = has_input(node, 2) and bool(graph.initializers[node.input_values[2]].to_torch().any())
    if training or len([name for name in node.output_values if name]) > 1:
        raise NotImplementedError(
            f"operator Dropout (node {node.name!r}) is in training mode; export the network after eval()"
        )
    return operator_result(node, _same, node.input_values[:1])


def _same(source: torch.Tensor) -> torch.Tensor:
    return source


_onnx2torch_batch_norm = get_converter("BatchNormalization", 15)


@converter("Identity")
def _identity(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return operator_result(node, _same)


@converter("BatchNormalization")
def _batch_norm(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    if node.attributes.get("training_mode", 0) or len([name for name in node.output_values if name]) > 1:
        raise NotImplementedError(
            f"operator BatchNormalization (node {node.name!r}) is in training mode; export the network after eval()"
        )
    return _onnx2torch_batch_norm(node, graph)
