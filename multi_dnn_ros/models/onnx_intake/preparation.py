"""Prepares an ONNX file: fixed size, folded constants, float32, cut before suppression."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.errors import Refusal
from multi_dnn_ros.models.onnx_graph import StaticGraph, ValueType, names_read, static_graph
from multi_dnn_ros.models.onnx_intake.inputs import ImageInput, fix_inputs, to_float32
from multi_dnn_ros.models.onnx_intake.metadata import Metadata, describe
from multi_dnn_ros.models.onnx_intake.outputs import OutputTensor, output_names, output_tensors

#: A protobuf message cannot be larger, bytes.
_MAX_BYTES = (2 << 30) - 1


@dataclass(frozen=True)
class Prepared:
    """A graph ready to run.

    model: onnx.ModelProto with one input, (images, 3, height, width) float32. image: the input of the file. outputs:
    name and shape of each output, 0 for a free axis. described: metadata from the file and the files beside it. cut:
    whether the graph was cut before a non-maximum suppression.
    """

    model: Any
    image: ImageInput
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    described: Metadata
    cut: bool


def prepare(path: Path, requested: tuple[int, int] = (0, 0), images: int = 1) -> Prepared:
    """Read `path` and prepare its graph for a number of images.

    requested: (width, height) for sides that the file leaves free; 0: as stated in the metadata, if at all. Raises
    Refusal, and errors of onnx and protobuf for damaged files.
    """
    from onnx import inliner

    model = _read_model(path)
    described = describe(path, {entry.key: entry.value for entry in model.metadata_props})
    requested = (requested[0] or described.size[0], requested[1] or described.size[1])
    opsets = {("" if entry.domain == "ai.onnx" else entry.domain): entry.version for entry in model.opset_import}
    if not opsets.get(""):
        raise Refusal("cannot be read as ONNX: it names no version of the standard operators (opset)")
    if len(model.functions):
        try:
            model = inliner.inline_local_functions(model)
        except Exception as error:
            raise Refusal(f"its functions cannot be inlined: {summarize_error(error)}") from None
    to_float32(model)
    image = fix_inputs(model, requested, images)
    if image.size is not None and any(side % described.stride for side in image.size):
        width, height = image.size
        raise Refusal(f"takes images whose sides are multiples of {described.stride}; not {width} x {height}")
    wanted = [value.name for value in model.graph.output]
    if not wanted:
        raise Refusal("cannot be read as ONNX: it has no output")
    graph = static_graph(model, static=image.size is not None)
    names = output_names(graph, wanted, images)
    tensors = output_tensors(graph, names, image.size, opsets[""], images)
    shapes = [_open_shape(graph, tensor) for tensor in tensors]
    rebuilt = _rebuild(graph, tensors, shapes)
    return Prepared(rebuilt, image, tuple(zip(names, shapes, strict=True)), described, names != wanted)


def _read_model(path: Path) -> Any:
    """The onnx.ModelProto of `path` with its weights inside; onnx reads external data from the model's folder only."""
    import onnx

    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise Refusal(f"has {size} bytes; allowed: {_MAX_BYTES}; save its weights as external data")
    model = onnx.load(path)
    if not model.graph.node and not model.graph.output:
        raise Refusal("cannot be read as ONNX: it holds no graph")
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _MAX_BYTES - (1 << 20):
        raise Refusal("its weights have more than 2 GiB, the largest size allowed")
    return model


def _open_shape(graph: StaticGraph, tensor: OutputTensor) -> tuple[int, ...]:
    """Shape of an output, 0 for a free axis."""
    shape = graph.types[tensor.name].axes if tensor.name in graph.types else graph.shape(tensor.name) or ()
    return (shape[0], shape[3], *shape[1:3]) if tensor.channels_last else shape


def _rebuild(graph: StaticGraph, tensors: list[OutputTensor], shapes: list[tuple[int, ...]]) -> Any:
    """The part of the graph that the outputs `tensors` need.

    A separate node writes each output, because onnx2torch would otherwise return all outputs of the node that writes
    it, and because onnx2torch cannot return a graph input or a constant.
    """
    from onnx import helper

    needed = {tensor.name for tensor in tensors}
    nodes = []
    for node in reversed(graph.nodes):
        if needed.intersection(name for name in node.output if name):
            needed.update(names_read(node))
            nodes.append(node)
    nodes.reverse()
    outputs = []
    for index, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
        written = f"output {index}"
        constant = graph.constants.get(tensor.name)
        if tensor.channels_last:
            nodes.append(helper.make_node("Transpose", [tensor.name], [written], f"output_{index}", perm=[0, 3, 1, 2]))
        else:
            nodes.append(helper.make_node("Identity", [tensor.name], [written], f"output_{index}"))
        if constant is None:
            outputs.append(ValueType(graph.types[tensor.name].kind, shape).info(written))
        else:
            outputs.append(helper.make_tensor_value_info(written, constant.data_type, shape))
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
