"""Prepares an ONNX file: one float32 image of fixed size, folded constants, cut before suppression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.onnx_graph import StaticGraph, ValueType, names_read, static_graph, subgraphs
from multi_dnn_ros.models.onnx_intake.metadata import Metadata, describe
from multi_dnn_ros.models.onnx_intake.outputs import output_names, output_tensors

#: Further inputs of exports by RT-DETR, Paddle and LSTR: name -> value for (width, height). With these values boxes are
#: in pixels of the input image, and no pixel is padding.
KNOWN_INPUTS: dict[str, Callable[[int, int], npt.ArrayLike]] = {
    "orig_target_sizes": lambda width, height: [[width, height]],
    "im_shape": lambda width, height: [[height, width]],
    "scale_factor": lambda width, height: [[1, 1]],
    "input_mask": lambda width, height: np.zeros((1, 1, height, width)),
}


@dataclass(frozen=True)
class Prepared:
    """A graph ready to run.

    model: onnx.ModelProto with one input, (images, 3, height, width) float32. size: (width, height) of its image; None:
    free. integers: whether the file takes uint8, that is, values from 0 to 255. outputs: name and shape of each output,
    0 for a free axis. described: metadata from the file and the files beside it. cut: whether the graph was cut before
    a non-maximum suppression.
    """

    model: Any
    size: tuple[int, int] | None
    integers: bool
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    described: Metadata
    cut: bool


def prepare(path: Path, requested: tuple[int, int] = (0, 0), images: int = 1) -> Prepared:
    """Read `path` and prepare its graph for a number of images.

    requested: (width, height) for sides that the file leaves free; 0: as stated in the metadata, if at all. Raises
    ModelError, which does not name the file, and errors of onnx and protobuf for damaged files.
    """
    import onnx
    from onnx import inliner

    model = onnx.load(path)  # reads external data from the model's folder only
    described = describe(path, {entry.key: entry.value for entry in model.metadata_props})
    requested = (requested[0] or described.size[0], requested[1] or described.size[1])
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    wanted = [value.name for value in model.graph.output]
    if not opset or not wanted:
        raise ModelError("cannot be read as ONNX: it names no version of the standard operators, or no output")
    if len(model.functions):
        model = inliner.inline_local_functions(model)
    _to_float32(model)
    size, integers = _fix_inputs(model, requested, images)
    if size is not None and any(side % described.stride for side in size):
        raise ModelError(f"takes images whose sides are multiples of {described.stride}; not {size[0]} x {size[1]}")
    graph = static_graph(model, static=size is not None)
    names = output_names(graph, wanted, images)
    tensors = output_tensors(graph, names, size, opset, images)
    shapes = [_open_shape(graph, *tensor) for tensor in tensors]
    outputs = tuple(zip(names, shapes, strict=True))
    return Prepared(_rebuild(graph, tensors, shapes), size, integers, outputs, described, names != wanted)


def _open_shape(graph: StaticGraph, name: str, channels_last: bool) -> tuple[int, ...]:
    """Shape of an output, 0 for a free axis."""
    shape = graph.types[name].axes if name in graph.types else graph.shape(name) or ()
    return (shape[0], shape[3], *shape[1:3]) if channels_last else shape


def _fix_inputs(model: Any, requested: tuple[int, int], images: int) -> tuple[tuple[int, int] | None, bool]:
    """Fix, in place, the image input to (images, 3, height, width) float32, and turn other known inputs into constants.

    requested: (width, height) for sides that the file leaves free; 0: unknown. A side that stays free makes all
    shapes that depend on it free. Returns `size` and `integers` of Prepared. Raises ModelError unless the inputs are
    one image and optionally some of KNOWN_INPUTS; and if there are such inputs and the size of the image is unknown.
    """
    from onnx import TensorProto, helper, numpy_helper

    constants = {tensor.name for tensor in model.graph.initializer}
    given = [value for value in model.graph.input if value.name not in constants]
    candidates = [value for value in given if value.name not in KNOWN_INPUTS and _is_image(value)]
    others = [value for value in given if value not in candidates]
    unknown = [value.name for value in others if value.name not in KNOWN_INPUTS]
    if len(candidates) != 1 or unknown:
        shapes = [_shape(value) for value in given]
        named = f"; unknown: {', '.join(name[:60] for name in unknown[:5])}" if candidates and unknown else ""
        raise ModelError(
            f"takes inputs of shapes {shapes[:8]} (0: free{named}); allowed: one image (1, 3, height, width) or "
            f"(1, height, width, 3), and inputs named {', '.join(KNOWN_INPUTS)}"
        )
    (image,) = candidates
    shape, element = _shape(image), image.type.tensor_type.elem_type
    channels_last = shape[3] == 3 and shape[1] != 3
    height, width = shape[1:3] if channels_last else shape[2:]
    width, height = width or requested[0], height or requested[1]
    if others and not (width and height):
        raise ModelError(
            f"has the input {others[0].name}, for which the image size must be known; set input_width and input_height"
        )
    for value in others:
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        numbers = np.array(KNOWN_INPUTS[value.name](width, height), kind)
        model.graph.initializer.append(numpy_helper.from_array(numbers, value.name))
        model.graph.input.remove(value)
    name = image.name
    if channels_last:
        name = f"{name}_channels_first"
        model.graph.node.insert(0, helper.make_node("Transpose", [name], [image.name], name, perm=[0, 2, 3, 1]))
    fixed = helper.make_tensor_value_info(name, TensorProto.FLOAT, [images, 3, height or None, width or None])
    model.graph.input.remove(image)
    model.graph.input.insert(0, fixed)
    return ((width, height) if width and height else None), element == TensorProto.UINT8


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(max(axis.dim_value, 0) for axis in value.type.tensor_type.shape.dim)


def _is_image(value: Any) -> bool:
    from onnx import TensorProto

    shape = _shape(value)
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.UINT8)
    if len(shape) != 4 or shape[0] not in (0, 1) or value.type.tensor_type.elem_type not in kinds:
        return False
    return shape[1] in (0, 3) or shape[3] == 3


def _to_float32(model: Any) -> None:
    """Turn float16 and bfloat16 into float32 everywhere in an onnx.ModelProto, in place: a parameter, not the file,
    selects the precision.
    """
    from onnx import TensorProto, numpy_helper

    half = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
    for graph in (model.graph, *(inner for node in model.graph.node for inner in subgraphs(node))):
        tensors = list(graph.initializer)
        for attribute in (each for node in graph.node for each in node.attribute):
            if attribute.name in ("to", "dtype", "stash_type", "output_dtype") and attribute.i in half:
                attribute.i = TensorProto.FLOAT
            if attribute.HasField("t"):
                tensors.append(attribute.t)
        for tensor in tensors:
            if tensor.data_type in half:
                values = numpy_helper.to_array(tensor).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in half:
                value.type.tensor_type.elem_type = TensorProto.FLOAT


def _rebuild(graph: StaticGraph, tensors: list[tuple[str, bool]], shapes: list[tuple[int, ...]]) -> Any:
    """The part of the graph that the outputs `tensors` need.

    A separate node writes each output, because onnx2torch would otherwise return all outputs of the node that writes
    it, and because onnx2torch cannot return a graph input or a constant.
    """
    from onnx import helper

    needed = {name for name, _ in tensors}
    nodes = []
    for node in reversed(graph.nodes):
        if needed.intersection(name for name in node.output if name):
            needed.update(names_read(node))
            nodes.append(node)
    nodes.reverse()
    outputs = []
    for index, ((name, channels_last), shape) in enumerate(zip(tensors, shapes, strict=True)):
        written, operator = f"output {index}", "Transpose" if channels_last else "Identity"
        order: dict[str, Any] = {"perm": [0, 3, 1, 2]} if channels_last else {}
        nodes.append(helper.make_node(operator, [name], [written], f"output_{index}", **order))
        if name in graph.constants:
            outputs.append(helper.make_tensor_value_info(written, graph.constants[name].data_type, shape))
        else:
            outputs.append(ValueType(graph.types[name].kind, shape).info(written))
    model = graph.model
    inputs = {value.name for value in model.graph.input}
    inner = [
        kind.info(name)
        for name, kind in graph.types.items()
        if name in needed and kind.is_tensor and name not in inputs
    ]
    rebuilt = helper.make_graph(
        nodes, "network", list(model.graph.input), outputs,
        [tensor for name, tensor in graph.constants.items() if name in needed], value_info=inner,
    )  # fmt: skip
    return helper.make_model(rebuilt, opset_imports=model.opset_import, ir_version=model.ir_version)
