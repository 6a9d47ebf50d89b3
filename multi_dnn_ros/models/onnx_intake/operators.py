"""Converters that onnx2torch lacks, or that read sizes while the network runs. Importing this module needs onnx2torch.

Each is added to onnx2torch's registry when this module is imported, for every version of its operator. A network that
reads sizes, axes or pads from tensors while it runs cannot be exported; here these are constants of the graph, read at
conversion. Only what the models of docs/models.md need is here: ONNX Runtime serves the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnx import defs
from torch import nn
from torch.nn import functional as F

from multi_dnn_ros.common.extras import optional

with optional("an ONNX file"):
    from onnx2torch.node_converters import registry
    from onnx2torch.onnx_graph import OnnxGraph
    from onnx2torch.onnx_node import OnnxNode
    from onnx2torch.utils.common import OnnxMapping, OnnxToTorchModule, OperationConverterResult

Converter = Callable[[OnnxNode, OnnxGraph], OperationConverterResult]
#: An operator with its options, as a function of its tensors.
Function = Callable[..., Any]

_REDUCTIONS: dict[str, Function] = {
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
    """An operator as a layer without weights. name: of the operator."""

    def __init__(self, function: Function, name: str) -> None:
        super().__init__()
        self.function = function
        self.name = name

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)

    def extra_repr(self) -> str:
        return self.name


class _Node:
    """A node and the graph that it is in."""

    def __init__(self, node: OnnxNode, graph: OnnxGraph) -> None:
        self.node, self.graph = node, graph
        self.inputs: tuple[str, ...] = tuple(node.input_values)
        self.operator: str = node.operation_type

    def attribute(self, name: str, default: Any) -> Any:
        return self.node.attributes.get(name, default)

    def constant(self, name: str, index: int) -> Any:
        """A value that early opsets have as the attribute `name`, later ones as input number `index`: a list or a
        number. None: it is not given. Raises NotImplementedError if the input is not a constant.
        """
        if name in self.node.attributes:
            return self.node.attributes[name]
        if len(self.inputs) <= index or not self.inputs[index]:
            return None
        if self.inputs[index] not in self.graph.initializers:
            raise self.refusal(f"input {index} ({self.inputs[index]!r}) is computed by the network")
        return self.graph.initializers[self.inputs[index]].to_torch().tolist()

    def number(self, name: str, index: int) -> Any:
        """As `constant`, for a single number, which may be stored as a list."""
        value = self.constant(name, index)
        return value[0] if isinstance(value, list) else value

    def refusal(self, problem: str) -> NotImplementedError:
        return NotImplementedError(f"operator {self.operator} (node {self.node.name!r}): {problem}")


def converter(*operators: str, tensors: int | None = 1) -> Callable[[Callable[[_Node], Function]], None]:
    """Decorator: register for every version of the named standard operators, in place of onnx2torch's own.

    tensors: number of inputs that the function takes, the others being constants; None: all.
    """

    def register(function_of: Callable[[_Node], Function]) -> None:
        def convert(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
            names = tuple(node.input_values[:tensors])
            operator = Operator(function_of(_Node(node, graph)), node.operation_type)
            return OperationConverterResult(operator, OnnxMapping(names, tuple(node.output_values)))

        for operator in operators:
            for version in _VERSIONS.get(operator, ()):
                # add_converter refuses to replace an entry, and there is no public way to remove one.
                registry._CONVERTER_REGISTRY.pop(_entry(operator, version), None)
                registry.add_converter(operation_type=operator, version=version)(convert)

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


@converter("Reshape")
def _reshape(node: _Node) -> Function:
    sizes, allow_zero = node.constant("shape", 1), node.attribute("allowzero", 0)
    return lambda source: source.reshape(
        [source.shape[axis] if size == 0 and not allow_zero else size for axis, size in enumerate(sizes)]
    )


@converter("Expand")
def _expand(node: _Node) -> Function:
    sizes = tuple(node.constant("shape", 1))
    return lambda source: source.expand(torch.broadcast_shapes(source.shape, sizes))


@converter("Slice")
def _slice(node: _Node) -> Function:
    starts, ends = node.constant("starts", 1), node.constant("ends", 2)
    axes = node.constant("axes", 3) or list(range(len(starts)))
    steps = node.constant("steps", 4) or [1] * len(starts)

    def call(source: torch.Tensor) -> torch.Tensor:
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
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

    return call


@converter("Pad")
def _pad(node: _Node) -> Function:
    pads = node.constant("pads", 1)
    axes = len(pads) // 2
    flat = [pads[side * axes + axis] for axis in reversed(range(axes)) for side in (0, 1)]
    mode = node.attribute("mode", "constant")
    mode = "replicate" if mode == "edge" else mode
    if node.constant("axes", 3) is not None or mode not in ("constant", "reflect", "replicate"):
        raise node.refusal(f"mode {mode!r}, or pads of some axes only")
    if mode == "constant":
        value = node.number("value", 2) or 0.0
        return lambda source: F.pad(source, flat, value=value)
    if any(flat[-4:]):  # PyTorch has the other modes for the axes after batch and channels only
        raise node.refusal(f"mode {mode!r} of batch or channels")
    return lambda source: F.pad(source, flat[:-4], mode)


@converter("Squeeze")
def _squeeze(node: _Node) -> Function:
    axes = node.constant("axes", 1)
    return torch.squeeze if axes is None else lambda source: source.squeeze(tuple(axes))


@converter("Unsqueeze")
def _unsqueeze(node: _Node) -> Function:
    axes = node.constant("axes", 1)  # of the result

    def call(source: torch.Tensor) -> torch.Tensor:
        for axis in sorted(axis % (source.ndim + len(axes)) for axis in axes):
            source = source.unsqueeze(axis)
        return source

    return call


@converter("Split")
def _split(node: _Node) -> Function:
    sizes, axis, count = node.constant("split", 1), node.attribute("axis", 0), len(node.node.output_values)
    if count == 1:
        return lambda source: source
    # Without sizes into equal parts, of which the last may be smaller.
    return lambda source: tuple(torch.split(source, sizes or -(-source.shape[axis] // count), dim=axis))


@converter("Tile")
def _tile(node: _Node) -> Function:
    repeats = node.constant("repeats", 1)
    return lambda source: source.repeat(repeats)


@converter("Gather", tensors=None)
def _gather(node: _Node) -> Function:
    axis = node.attribute("axis", 0)
    if node.inputs[1] in node.graph.initializers and isinstance(number := node.constant("", 1), int):
        return lambda source, _: source.select(axis, number)
    return lambda source, indices: source[(*[slice(None)] * (axis % source.ndim), indices.long())]


@converter("GatherElements", tensors=None)
def _gather_elements(node: _Node) -> Function:
    axis = node.attribute("axis", 0)
    return lambda source, indices: source.gather(
        axis, torch.where(indices < 0, indices + source.shape[axis], indices).long()
    )


@converter("ScatterND", tensors=None)
def _scatter_nd(node: _Node) -> Function:
    if (reduction := node.attribute("reduction", "none")) != "none":
        raise node.refusal(f"reduction {reduction!r}")
    return lambda source, indices, updates: source.index_put(indices.long().unbind(-1), updates)


@converter("TopK")
def _top_k(node: _Node) -> Function:
    options = {
        "k": node.number("k", 1), "dim": node.attribute("axis", -1),
        "largest": bool(node.attribute("largest", 1)), "sorted": bool(node.attribute("sorted", 1)),
    }  # fmt: skip
    return lambda source: tuple(source.topk(**options))


@converter(*_REDUCTIONS)
def _reduce(node: _Node) -> Function:
    if node.attribute("noop_with_empty_axes", 0):
        raise node.refusal("noop_with_empty_axes")
    axes, keep, operation = node.constant("axes", 1), bool(node.attribute("keepdims", 1)), _REDUCTIONS[node.operator]
    return lambda source: operation(source, tuple(axes or range(source.ndim)), keepdim=keep)


@converter("Clip")
def _clip(node: _Node) -> Function:
    low, high = node.number("min", 1), node.number("max", 2)
    return lambda source: source.clamp(low, high)


@converter("Gelu")
def _gelu(node: _Node) -> Function:
    approximate = node.attribute("approximate", "none")
    return lambda source: F.gelu(source, approximate=approximate)


@converter("GridSample", tensors=None)
def _grid_sample(node: _Node) -> Function:
    mode, padding = _SAMPLING[node.attribute("mode", "linear")], node.attribute("padding_mode", "zeros")
    corners = bool(node.attribute("align_corners", 0))
    return lambda source, grid: F.grid_sample(source, grid, mode, padding, corners)


@converter("Resize")
def _resize(node: _Node) -> Function:
    """By torch.nn.functional.interpolate. Where its rule for coordinates is another one than the node's, the comparison
    with ONNX Runtime after the conversion finds it; by integer factors, most rules agree.
    """
    value = node.graph.value_info[node.node.output_values[0]]
    result = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
    mode = node.attribute("mode", "nearest")
    coordinates = node.attribute("coordinate_transformation_mode", "half_pixel")
    interpolation = _INTERPOLATIONS.get((mode, len(result) - 2))
    others = [name for name in ("antialias", "exclude_outside") if node.attribute(name, 0)]
    if interpolation is None or coordinates == "tf_crop_and_resize" or others or not all(result):
        raise node.refusal(f"to {result}: mode {mode}, {', '.join([coordinates, *others])}")
    corners = None if mode == "nearest" else coordinates == "align_corners"
    return lambda source: F.interpolate(source, result[2:], mode=interpolation, align_corners=corners)


def _register_later_versions() -> None:
    """Register the converter of an operator for each later version, too. Where that version computes something else,
    the comparison with ONNX Runtime after the conversion finds it.
    """
    for operator in sorted({entry.operation_type for entry in registry._CONVERTER_REGISTRY if not entry.domain}):
        known: Converter | None = None
        for version in _VERSIONS.get(operator, ()):
            entry = _entry(operator, version)
            if entry in registry._CONVERTER_REGISTRY:
                known = registry._CONVERTER_REGISTRY[entry]
            elif known is not None:
                registry.add_converter(operation_type=operator, version=version)(known)


_register_later_versions()
