"""Converters that onnx2torch lacks, or that read sizes while the network runs. Importing this module needs onnx2torch.

Each is added to onnx2torch's registry when this module is imported, for every version of its operator. A network that
reads sizes, axes or pads from tensors while it runs cannot be exported; here these are constants of the graph, read at
conversion. Only what the models of docs/models.md need is here: ONNX Runtime serves the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnx import defs, helper
from torch import nn
from torch.nn import functional as F

from multi_dnn_ros.common.extras import optional

with optional("an ONNX file"):
    from onnx2torch.node_converters import registry
    from onnx2torch.onnx_graph import OnnxGraph
    from onnx2torch.onnx_node import OnnxNode
    from onnx2torch.utils.common import OnnxMapping, OnnxToTorchModule, OperationConverterResult

Converter = Callable[[OnnxNode, OnnxGraph], OperationConverterResult]

_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "ReduceSum": torch.sum,
    "ReduceMean": torch.mean,
    "ReduceMax": torch.amax,
    "ReduceMin": torch.amin,
    "ReduceL2": lambda source, axes, keepdim: torch.linalg.vector_norm(source, 2, axes, keepdim),
}
#: GridSample's modes by the names of opset 16 and of opset 20.
_SAMPLING = {"bilinear": "bilinear", "linear": "bilinear", "bicubic": "bicubic", "cubic": "bicubic",
             "nearest": "nearest"}  # fmt: skip
_INTERPOLATIONS = {("nearest", 1): "nearest", ("nearest", 2): "nearest", ("linear", 1): "linear",
                   ("linear", 2): "bilinear", ("cubic", 2): "bicubic"}  # fmt: skip


class Operator(nn.Module, OnnxToTorchModule):
    """An operator as a layer without weights: a function of tensors with fixed options."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        self.options = options

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, **self.options)

    def extra_repr(self) -> str:
        return self.function.__name__.strip("_")


def converter(*operators: str) -> Callable[[Converter], Converter]:
    """Decorator: register for every version of the named standard operators, in place of onnx2torch's own."""

    def register(function: Converter) -> Converter:
        for operator in operators:
            for version in _VERSIONS.get(operator, ()):
                # add_converter refuses to replace an entry, and there is no public way to remove one.
                registry._CONVERTER_REGISTRY.pop(_entry(operator, version), None)
                registry.add_converter(operation_type=operator, version=version)(function)
        return function

    return register


def _entry(operator: str, version: int) -> Any:
    return registry.OperationDescription(defs.ONNX_DOMAIN, operator, version)


def _versions() -> dict[str, list[int]]:
    """By standard operator: opsets that defined or changed it, as far as the installed onnx knows, ascending."""
    found: dict[str, list[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == defs.ONNX_DOMAIN:
            found.setdefault(schema.name, []).append(schema.since_version)
    return {name: sorted(versions) for name, versions in found.items()}


_VERSIONS = _versions()


def _result(
    node: OnnxNode, function: Callable[..., Any], inputs: Sequence[str] | None = None, **options: Any
) -> OperationConverterResult:
    """The result of a converter: `function` on the tensors `inputs` (all of the node's by default) with `options`."""
    names = tuple(node.input_values if inputs is None else inputs)
    return OperationConverterResult(Operator(function, options), OnnxMapping(names, tuple(node.output_values)))


def _constant(node: OnnxNode, graph: OnnxGraph, name: str, index: int) -> Any:
    """A value that early opsets have as the attribute `name`, later ones as input number `index`: a list or a number.

    None: it is not given. Raises NotImplementedError if the input is not a constant.
    """
    if name in node.attributes:
        return node.attributes[name]
    if len(node.input_values) <= index or not node.input_values[index]:
        return None
    value = node.input_values[index]
    if value not in graph.initializers:
        raise NotImplementedError(
            f"operator {node.operation_type} (node {node.name!r}): input {index} ({value!r}) is computed by the "
            "network; allowed: a constant"
        )
    return graph.initializers[value].to_torch().tolist()


def _number(node: OnnxNode, graph: OnnxGraph, name: str, index: int) -> Any:
    """As `_constant`, for a single number, which may be stored as a list."""
    value = _constant(node, graph, name, index)
    return value[0] if isinstance(value, list) else value


def _reshape(source: torch.Tensor, sizes: list[int], allow_zero: bool) -> torch.Tensor:
    return source.reshape([source.shape[i] if size == 0 and not allow_zero else size for i, size in enumerate(sizes)])


@converter("Reshape")
def _convert_reshape(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    sizes, allow_zero = _constant(node, graph, "shape", 1), bool(node.attributes.get("allowzero", 0))
    return _result(node, _reshape, node.input_values[:1], sizes=sizes, allow_zero=allow_zero)


def _expand(source: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    return source.expand(torch.broadcast_shapes(source.shape, tuple(sizes)))


@converter("Expand")
def _convert_expand(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return _result(node, _expand, node.input_values[:1], sizes=_constant(node, graph, "shape", 1))


def _slice(source: torch.Tensor, ranges: list[tuple[int, int, int, int]]) -> torch.Tensor:
    """ranges: (axis, start, end, step), with the meaning of Python's slices."""
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


@converter("Slice")
def _convert_slice(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    starts, ends = _constant(node, graph, "starts", 1), _constant(node, graph, "ends", 2)
    axes = _constant(node, graph, "axes", 3) or list(range(len(starts)))
    steps = _constant(node, graph, "steps", 4) or [1] * len(starts)
    ranges = list(zip(axes, starts, ends, steps, strict=True))
    return _result(node, _slice, node.input_values[:1], ranges=ranges)


def _pad(source: torch.Tensor, pads: list[int], mode: str, value: float) -> torch.Tensor:
    return F.pad(source, pads, mode, value if mode == "constant" else None)


@converter("Pad")
def _convert_pad(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    pads = _constant(node, graph, "pads", 1)
    axes = len(pads) // 2
    flat = [pads[side * axes + axis] for axis in reversed(range(axes)) for side in (0, 1)]
    mode = {"edge": "replicate"}.get(node.attributes.get("mode", "constant"), node.attributes.get("mode", "constant"))
    if _constant(node, graph, "axes", 3) is not None or mode not in ("constant", "reflect", "replicate"):
        raise NotImplementedError(f"operator Pad (node {node.name!r}): mode {mode!r}, or pads of some axes only")
    if mode != "constant":  # which PyTorch has for the axes after batch and channels only
        if any(flat[-4:]):
            raise NotImplementedError(f"operator Pad (node {node.name!r}): mode {mode!r} of batch or channels")
        flat = flat[:-4]
    value = _number(node, graph, "value", 2) or 0.0
    return _result(node, _pad, node.input_values[:1], pads=flat, mode=mode, value=value)


def _squeeze(source: torch.Tensor, axes: list[int] | None) -> torch.Tensor:
    return source.squeeze() if axes is None else source.squeeze(tuple(axes))


@converter("Squeeze")
def _convert_squeeze(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return _result(node, _squeeze, node.input_values[:1], axes=_constant(node, graph, "axes", 1))


def _unsqueeze(source: torch.Tensor, axes: list[int]) -> torch.Tensor:
    """axes: indices of axes of the result."""
    for axis in sorted(axis % (source.ndim + len(axes)) for axis in axes):
        source = source.unsqueeze(axis)
    return source


@converter("Unsqueeze")
def _convert_unsqueeze(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return _result(node, _unsqueeze, node.input_values[:1], axes=_constant(node, graph, "axes", 1))


def _split(
    source: torch.Tensor, sizes: list[int] | None, count: int, axis: int
) -> tuple[torch.Tensor, ...] | torch.Tensor:
    """Into `sizes`, else into `count` equal parts, of which the last may be smaller."""
    if count == 1:
        return source
    return torch.split(source, -(-source.shape[axis] // count) if sizes is None else sizes, dim=axis)


@converter("Split")
def _convert_split(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    sizes, axis = _constant(node, graph, "split", 1), node.attributes.get("axis", 0)
    return _result(node, _split, node.input_values[:1], sizes=sizes, count=len(node.output_values), axis=axis)


def _tile(source: torch.Tensor, repeats: list[int]) -> torch.Tensor:
    return source.repeat(repeats)


@converter("Tile")
def _convert_tile(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return _result(node, _tile, node.input_values[:1], repeats=_constant(node, graph, "repeats", 1))


def _gather(source: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    index: tuple[Any, ...] = (*[slice(None)] * (axis % source.ndim), indices.long())
    return source[index]


@converter("Gather")
def _convert_gather(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    axis = node.attributes.get("axis", 0)
    if node.input_values[1] in graph.initializers and isinstance(index := _constant(node, graph, "", 1), int):
        return _result(node, torch.select, node.input_values[:1], dim=axis, index=index)
    return _result(node, _gather, axis=axis)


def _gather_elements(source: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    """Negative indices count from the end."""
    return source.gather(axis, torch.where(indices < 0, indices + source.shape[axis], indices).long())


@converter("GatherElements")
def _convert_gather_elements(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return _result(node, _gather_elements, axis=node.attributes.get("axis", 0))


def _scatter_nd(source: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """A copy of `source` with `updates` at the coordinates in the last axis of `indices`."""
    return source.index_put(indices.long().unbind(-1), updates)


@converter("ScatterND")
def _convert_scatter_nd(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    if (reduction := node.attributes.get("reduction", "none")) != "none":
        raise NotImplementedError(f"operator ScatterND (node {node.name!r}): reduction {reduction!r}")
    return _result(node, _scatter_nd)


def _top_k(source: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = source.topk(**options)
    return values, indices


@converter("TopK")
def _convert_top_k(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return _result(
        node, _top_k, node.input_values[:1], k=_number(node, graph, "k", 1), dim=node.attributes.get("axis", -1),
        largest=bool(node.attributes.get("largest", 1)), sorted=bool(node.attributes.get("sorted", 1)),
    )  # fmt: skip


def _reduce(
    source: torch.Tensor, operation: Callable[..., torch.Tensor], axes: list[int] | None, keep: bool
) -> torch.Tensor:
    return operation(source, tuple(range(source.ndim)) if axes is None else tuple(axes), keepdim=keep)


@converter(*_REDUCTIONS)
def _convert_reduction(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    if node.attributes.get("noop_with_empty_axes", 0):
        raise NotImplementedError(f"operator {node.operation_type} (node {node.name!r}): noop_with_empty_axes")
    axes, keep = _constant(node, graph, "axes", 1) or None, bool(node.attributes.get("keepdims", 1))
    operation = _REDUCTIONS[node.operation_type]
    return _result(node, _reduce, node.input_values[:1], operation=operation, axes=axes, keep=keep)


@converter("Clip")
def _convert_clip(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    bounds = {name: _number(node, graph, name, index) for index, name in ((1, "min"), (2, "max"))}
    return _result(node, torch.clamp, node.input_values[:1], **bounds)


@converter("Gelu")
def _convert_gelu(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return _result(node, F.gelu, approximate=node.attributes.get("approximate", "none"))


@converter("GridSample")
def _convert_grid_sample(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    return _result(
        node, F.grid_sample, mode=_SAMPLING[node.attributes.get("mode", "linear")],
        padding_mode=node.attributes.get("padding_mode", "zeros"),
        align_corners=bool(node.attributes.get("align_corners", 0)),
    )  # fmt: skip


@converter("Resize")
def _convert_resize(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
    """By torch.nn.functional.interpolate. Where its rule for coordinates is another one than the node's, the comparison
    with ONNX Runtime after the conversion finds it; by integer factors, most rules agree.
    """
    result = tuple(axis.dim_value for axis in graph.value_info[node.output_values[0]].type.tensor_type.shape.dim)
    mode = node.attributes.get("mode", "nearest")
    coordinates = node.attributes.get("coordinate_transformation_mode", "half_pixel")
    interpolation = _INTERPOLATIONS.get((mode, len(result) - 2))
    others = [name for name in ("antialias", "exclude_outside") if node.attributes.get(name, 0)]
    if interpolation is None or coordinates == "tf_crop_and_resize" or others or not all(result):
        raise NotImplementedError(
            f"operator Resize (node {node.name!r}) to {result}: mode {mode}, {', '.join([coordinates, *others])}"
        )
    corners = None if mode == "nearest" else coordinates == "align_corners"
    return _result(
        node, F.interpolate, node.input_values[:1], size=list(result[2:]), mode=interpolation, align_corners=corners
    )


def _register_later_versions() -> None:
    """Register the converter of an operator for each later version, for nodes that use nothing new in that version."""
    for operator in sorted({entry.operation_type for entry in registry._CONVERTER_REGISTRY if not entry.domain}):
        known: Converter | None = None
        for version in _VERSIONS.get(operator, ()):
            entry = _entry(operator, version)
            if entry in registry._CONVERTER_REGISTRY:
                known, schema = registry._CONVERTER_REGISTRY[entry], defs.get_schema(operator, version)
            elif known is not None:
                later = _for_later_version(known, schema, defs.get_schema(operator, version))
                registry.add_converter(operation_type=operator, version=version)(later)


def _for_later_version(known: Converter, before: Any, now: Any) -> Converter:
    def convert(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
        new = {
            name for name, value in node.attributes.items()
            if name not in before.attributes and value != _default(now.attributes[name])
        }  # fmt: skip
        if new or len(node.input_values) > before.max_input:
            raise NotImplementedError(
                f"operator {node.operation_type} (node {node.name!r}) in version {now.since_version}: "
                f"{', '.join(sorted(new)) or 'its further inputs'}"
            )
        return known(node, graph)

    return convert


def _default(attribute: Any) -> Any:
    if not attribute.default_value.name:
        return None
    value = helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else value


_register_later_versions()
