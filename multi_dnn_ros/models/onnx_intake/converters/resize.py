"""Converter of Resize (and Upsample): every coordinate mode, rounding, antialiasing, cubic coefficient and policy.

ONNX defines Resize separately for each axis, and the weights of each axis are computed here by that definition. If one
of PyTorch's interpolations has the same weights, which is checked numerically, it is used. Otherwise mode nearest
becomes an index, and every other mode a matrix product, for each axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from multi_dnn_ros.models.onnx_intake.converters.registration import (
    OnnxGraph,
    OnnxMapping,
    OnnxNode,
    OnnxToTorchModule,
    OperationConverterResult,
    constant,
    converter,
    has_input,
    shape_of,
)

_Array = npt.NDArray[Any]
#: Maximum number of elements in the weights of one axis.
_MAX_TABLE_ELEMENTS = 8192 * 8192
_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


@dataclass(frozen=True)
class _Rules:
    mode: str
    coordinates: str
    rounding: str
    antialias: bool
    coefficient: float
    exclude_outside: bool
    outside: float


@dataclass(frozen=True)
class _Axis:
    """One resized axis. roi: start and end of the crop of tf_crop_and_resize, as fractions of the length."""

    number: int
    length: int
    result: int
    scale: float
    roi: tuple[float, float]


def _origins(axis: _Axis, rules: _Rules) -> _Array:
    """Coordinate in the input of each index of the output (ONNX operator Resize, coordinate_transformation_mode).

    In float32, as ONNX Runtime computes them, because the rounding may decide which of two elements is nearest.
    """
    index = np.arange(axis.result, dtype=np.float32)
    scale, length, result = np.float32(axis.scale), np.float32(axis.length), np.float32(axis.result)
    if rules.coordinates == "asymmetric":
        return index / scale
    if rules.coordinates == "align_corners":
        return index * (length - 1) / (result - 1) if result > 1 else index * 0
    if rules.coordinates == "pytorch_half_pixel" and result == 1:
        return index * 0
    if rules.coordinates == "tf_crop_and_resize":
        start, end = np.float32(axis.roi[0]), np.float32(axis.roi[1])
        if result == 1:
            return index * 0 + 0.5 * (start + end) * (length - 1)
        return start * (length - 1) + index * (end - start) * (length - 1) / (result - 1)
    if rules.coordinates == "half_pixel_symmetric":
        adjustment = result / (scale * length)
        return length / 2 * (1 - adjustment) + (index + 0.5) / scale - 0.5
    if rules.coordinates in ("half_pixel", "pytorch_half_pixel"):
        return (index + 0.5) / scale - 0.5
    raise NotImplementedError(f"operator Resize: coordinate_transformation_mode {rules.coordinates!r}")


def _nearest(axis: _Axis, rules: _Rules) -> _Array:
    """Index in the input of each index of the output."""
    origin = _origins(axis, rules)
    rounded = {
        "round_prefer_floor": lambda: np.ceil(origin - 0.5),
        "round_prefer_ceil": lambda: np.floor(origin + 0.5),
        "floor": lambda: np.floor(origin),
        "ceil": lambda: np.ceil(origin),
    }
    if rules.rounding not in rounded:
        raise NotImplementedError(f"operator Resize: nearest_mode {rules.rounding!r}")
    return rounded[rules.rounding]().clip(0, axis.length - 1).astype(np.int64)


def _kernel(distance: _Array, rules: _Rules) -> _Array:
    distance = np.abs(distance)
    if rules.mode == "linear":
        return np.asarray(np.maximum(1 - distance, 0))
    a = rules.coefficient
    near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    far = a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _weights(axis: _Axis, rules: _Rules) -> _Array:
    """(result, length) float32: the weight of each input element in each output element."""
    origin = _origins(axis, rules)
    stretch = min(axis.scale, 1.0) if rules.antialias else 1.0
    reach = (1 if rules.mode == "linear" else 2) / stretch
    taps = np.floor(origin)[:, None] + np.arange(1 - math.ceil(reach), math.ceil(reach) + 1)[None]
    weights = _kernel((origin[:, None] - taps) * stretch, rules)
    if rules.exclude_outside:
        weights = np.where((taps < 0) | (taps >= axis.length), 0.0, weights)
    weights = weights / weights.sum(1, keepdims=True)
    full = np.zeros((axis.result, axis.length))
    np.add.at(full, (np.arange(axis.result)[:, None], taps.clip(0, axis.length - 1).astype(np.int64)), weights)
    return full.astype(np.float32)


class Resize(nn.Module, OnnxToTorchModule):
    """Resizes axes one after the other: by index (int64) or by matrix (result, length)."""

    def __init__(self, axes: list[int], tables: list[torch.Tensor], outside: torch.Tensor | None, value: float) -> None:
        super().__init__()
        self.axes, self.value = axes, value
        for position, table in enumerate(tables):
            self.register_buffer(f"table_{position}", table, persistent=False)
        self.register_buffer("outside", outside, persistent=False)

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        for position, axis in enumerate(self.axes):
            table = self.get_buffer(f"table_{position}")
            if table.dtype == torch.int64:
                source = source.index_select(axis, table)
            else:
                source = (source.movedim(axis, -1) @ table.to(source.dtype).T).movedim(-1, axis)
        if isinstance(self.outside, torch.Tensor):
            source = torch.where(self.outside, self.value, source)
        return source


class Interpolate(nn.Module, OnnxToTorchModule):
    """torch.nn.functional.interpolate to a fixed size of the axes after batch and channels."""

    def __init__(self, size: list[int], options: dict[str, Any]) -> None:
        super().__init__()
        self.size, self.options = size, options

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        return F.interpolate(source, self.size, **self.options)


def _interpolate_options(shape: list[int], axes: list[_Axis], tables: list[torch.Tensor], rules: _Rules) -> Any:
    """Options with which PyTorch's interpolate has the same weights on every axis; None: there are none."""
    spatial = len(shape) - 2
    if spatial not in (1, 2) or any(axis.number < 2 for axis in axes) or rules.coordinates == "tf_crop_and_resize":
        return None
    candidates: list[dict[str, Any]] = []
    if rules.mode == "nearest":
        candidates = [{"mode": "nearest"}, {"mode": "nearest-exact"}]
    elif rules.mode == "linear" or spatial == 2:
        mode = _MODES[spatial] if rules.mode == "linear" else "bicubic"
        candidates = [{"mode": mode, "align_corners": corners} for corners in (False, True)]
        if rules.antialias:
            candidates = [{**each, "antialias": True} for each in candidates] if spatial == 2 else []
    probe = np.random.default_rng(0)
    for options in candidates:
        for axis, table in zip(axes, tables, strict=True):
            values = torch.from_numpy(probe.standard_normal((axis.length, 4)).astype(np.float32))
            expected = values[table] if table.dtype == torch.int64 else table @ values
            if spatial == 1:
                got = F.interpolate(values.T[None], [axis.result], **options)[0].T
            else:
                got = F.interpolate(values.T[None, :, :, None], [axis.result, 1], **options)[0, :, :, 0].T
            if not torch.allclose(got, expected, atol=1e-5):
                break
        else:
            return options
    return None


def _plan(node: OnnxNode, graph: OnnxGraph) -> tuple[list[int], list[_Axis]]:
    """Shape of the input, and the axes that are resized."""
    shape = shape_of(graph, node.input_values[0])
    old = node.operation_type == "Upsample" or len(node.input_values) == 2  # (X, scales), as before opset 11
    roi = [] if old else constant(node, graph, 1) or []
    scales = node.attributes.get("scales") or constant(node, graph, 1 if old else 2) or []
    sizes = [] if old else constant(node, graph, 3) or []
    numbers = [axis % len(shape) for axis in node.attributes.get("axes") or range(len(shape))]
    policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
    if sizes and policy != "stretch":
        choose = max if policy == "not_smaller" else min
        common = choose(size / shape[number] for number, size in zip(numbers, sizes, strict=True))
        scales = [common] * len(numbers)
        sizes = [math.floor(common * shape[number] + 0.5) for number in numbers]
    axes = []
    for position, number in enumerate(numbers):
        length = shape[number]
        untouched = (sizes[position] == length) if sizes else (scales[position] == 1.0)
        crop = (roi[position], roi[len(numbers) + position]) if len(roi) == 2 * len(numbers) else (0.0, 1.0)
        if untouched and crop == (0.0, 1.0):
            continue
        if not length:
            raise NotImplementedError(
                f"operator Resize (node {node.name!r}): axis {number} of its input is free; set input_width and "
                "input_height"
            )
        result = int(sizes[position]) if sizes else math.floor(length * scales[position])
        scale = result / length if sizes and policy == "stretch" else float(scales[position])
        axes.append(_Axis(number, length, result, scale, crop))
    return shape, axes


@converter("Resize", "Upsample")
def _resize(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    old = node.operation_type == "Upsample" or (len(node.input_values) == 2 and has_input(node, 1))
    attributes = node.attributes
    mode = attributes.get("mode", "nearest")
    rules = _Rules(
        mode,
        attributes.get("coordinate_transformation_mode", "asymmetric" if old else "half_pixel"),
        attributes.get("nearest_mode", "floor" if old else "round_prefer_floor"),
        bool(attributes.get("antialias", 0)),
        attributes.get("cubic_coeff_a", -0.75),
        bool(attributes.get("exclude_outside", 0)),
        attributes.get("extrapolation_value", 0.0),
    )
    if mode not in ("nearest", "linear", "cubic"):
        raise NotImplementedError(f"operator Resize (node {node.name!r}): mode {mode!r}")
    crops = rules.coordinates == "tf_crop_and_resize"
    shape, axes = _plan(node, graph)
    if not crops:
        axes = [axis for axis in axes if axis.result != axis.length or axis.scale != 1.0]
    if mode != "nearest" and any(axis.length * axis.result > _MAX_TABLE_ELEMENTS for axis in axes):
        raise NotImplementedError(f"operator Resize (node {node.name!r}): axes of more than 8192 elements")
    make = _nearest if mode == "nearest" else _weights
    tables = [torch.from_numpy(make(axis, rules)) for axis in axes]
    outside = _outside(len(shape), axes, rules) if crops else None
    options = _interpolate_options(shape, axes, tables, rules)
    results = {axis.number: axis.result for axis in axes}
    module: nn.Module
    if options is not None and all(shape[2:]):
        module = Interpolate([results.get(number, shape[number]) for number in range(2, len(shape))], options)
    else:
        module = Resize([axis.number for axis in axes], tables, outside, rules.outside)
    return OperationConverterResult(module, OnnxMapping(node.input_values[:1], node.output_values))


def _outside(rank: int, axes: list[_Axis], rules: _Rules) -> torch.Tensor:
    """Mask of the output elements that lie outside the input; axes that are not resized have length 1."""
    found = torch.zeros([1] * rank, dtype=torch.bool)
    for axis in axes:
        origin = torch.from_numpy(_origins(axis, rules))
        shape = [axis.result if number == axis.number else 1 for number in range(rank)]
        found = found | ((origin < 0) | (origin > axis.length - 1)).reshape(shape)
    return found
