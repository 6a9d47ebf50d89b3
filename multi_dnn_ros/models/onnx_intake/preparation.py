"""Prepares an ONNX file for conversion: fixed size, folded constants, float32, cut before suppression."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.onnx_intake.cutting import output_names
from multi_dnn_ros.models.onnx_intake.folding import Folded, fold
from multi_dnn_ros.models.onnx_intake.inputs import ImageInput, fix_inputs
from multi_dnn_ros.models.onnx_intake.map_outputs import OutputTensor, output_tensors
from multi_dnn_ros.models.onnx_intake.memory import check_memory
from multi_dnn_ros.models.onnx_intake.metadata import Metadata, describe
from multi_dnn_ros.models.onnx_intake.padding import make_pads_explicit
from multi_dnn_ros.models.onnx_intake.precision import to_float32
from multi_dnn_ros.models.onnx_intake.quantized_operators import expand_quantized
from multi_dnn_ros.models.onnx_intake.reading import read_model
from multi_dnn_ros.models.onnx_intake.refusal import Refusal

#: Operator sets whose exports are tested.
OPSETS = range(11, 23)


@dataclass(frozen=True)
class Prepared:
    """A graph ready to be converted.

    model: onnx.ModelProto with one input, (1, 3, height, width) float32. image: the input of the file. outputs: name
    and shape of each output, 0 for a free axis. tensors: the tensors of the file that the outputs are made from.
    described: metadata from the file and the files beside it. cut: whether the graph was cut before a non-maximum
    suppression. half: whether the file is in half precision. quantized: whether it rounds activations. rounded: those
    tensors that the file's DynamicQuantizeLinear operators write (8-bit values, scales, zero points) and that the graph
    computes. operators: number of uses of each operator in the graph. producer: exporter and its version. opset:
    version of the standard operators.
    """

    model: Any
    image: ImageInput
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    tensors: tuple[OutputTensor, ...]
    described: Metadata
    cut: bool
    half: bool
    quantized: bool
    rounded: tuple[str, ...]
    operators: dict[str, int]
    producer: str
    opset: int


def prepare(path: Path, requested: tuple[int, int] = (0, 0), *, weights: bool = True) -> Prepared:
    """Read `path` and prepare its graph.

    requested: (width, height) for sides that the file leaves free; 0: as stated in the metadata, if at all. weights
    False: external data is not read, so the model can be inspected but not run. Raises Refusal, and errors of onnx and
    protobuf for damaged files.
    """
    from onnx import defs, helper, inliner

    model = read_model(path, weights=weights)
    described = describe(path, {entry.key: entry.value for entry in model.metadata_props})
    requested = (requested[0] or described.size[0], requested[1] or described.size[1])

    opsets = {("" if entry.domain == "ai.onnx" else entry.domain): entry.version for entry in model.opset_import}
    if not opsets.get(""):
        raise Refusal("cannot be read as ONNX: it names no version of the standard operators (opset)")
    newest = defs.onnx_opset_version()
    if not all(1 <= version <= newest for version in opsets.values()):
        raise Refusal(f"has opset {max(opsets.values())}; allowed: up to {newest}; export it with opset {OPSETS[-1]}")
    if len(model.functions):
        try:
            model = inliner.inline_local_functions(model)
        except Exception as error:
            raise Refusal(f"its functions cannot be inlined: {summarize_error(error)}") from None
    for graph_node in model.graph.node:
        if graph_node.domain == "ai.onnx":  # the long name of the same operators
            graph_node.domain = ""
    half = to_float32(model)
    rounded = [
        name for node in model.graph.node if node.op_type == "DynamicQuantizeLinear" for name in node.output if name
    ]
    quantized = expand_quantized(model)
    image = fix_inputs(model, requested)
    if image.size is not None and any(side % described.stride for side in image.size):
        width, height = image.size
        raise Refusal(f"takes images whose sides are multiples of {described.stride}; not {width} x {height}")
    folded = fold(model, static=image.size is not None)
    (image_name,) = (value.name for value in model.graph.input if value.name not in folded.constants)
    wanted = [value.name for value in model.graph.output]
    missing = [name for name in wanted if name not in folded.types and name not in folded.dynamic]
    if missing or not wanted:
        raise Refusal(f"cannot be read as ONNX: no operator writes its output {missing[0][:80]!r}" if missing else
                      "cannot be read as ONNX: it has no output")  # fmt: skip
    names = output_names(folded, image_name, wanted)
    tensors = output_tensors(folded, names, image.size, opsets[""])
    make_pads_explicit(folded)
    check_memory(folded, [tensor.name for tensor in tensors])
    graph = _rebuild(model, folded, image_name, tensors)
    written = {name for node in graph.node for name in node.output}
    operators: dict[str, int] = {}
    for node in graph.node:
        operators[node.op_type] = operators.get(node.op_type, 0) + 1
    rebuilt = helper.make_model(graph, opset_imports=_imports(opsets), ir_version=max(model.ir_version, 3))
    return Prepared(
        rebuilt, image,
        tuple((name, _open_shape(folded, tensor)) for name, tensor in zip(names, tensors, strict=True)), tuple(tensors),
        described, names != wanted, half, quantized, tuple(name for name in rounded if name in written), operators,
        f"{model.producer_name} {model.producer_version}".strip(), opsets[""],
    )  # fmt: skip


def _imports(opsets: dict[str, int]) -> list[Any]:
    from onnx import helper

    return [helper.make_opsetid(domain, version) for domain, version in opsets.items()]


def _open_shape(folded: Folded, tensor: OutputTensor) -> tuple[int, ...]:
    """Shape of an output, 0 for a free axis."""
    shape = tuple(axis.dim_value for axis in folded.types[tensor.name].tensor_type.shape.dim)
    return (shape[0], shape[3], *shape[1:3]) if tensor.channels_last else shape


def _rebuild(model: Any, folded: Folded, image: str, tensors: list[OutputTensor]) -> Any:
    """The part of the graph that the outputs `tensors` need.

    A separate node writes each output, because onnx2torch would otherwise return all outputs of the node that writes
    it, and because onnx2torch cannot return a graph input or a constant.
    """
    from onnx import helper

    names = [tensor.name for tensor in tensors]
    needed = set(names)
    nodes = []
    for node in reversed(folded.nodes):
        if needed.intersection(name for name in node.output if name):
            needed.update(name for name in node.input if name)
            nodes.append(node)
    nodes.reverse()
    outputs = []
    for index, tensor in enumerate(tensors):
        written, kind = f"output {index}", folded.types[tensor.name]
        if tensor.channels_last:
            nodes.append(helper.make_node("Transpose", [tensor.name], [written], f"output_{index}", perm=[0, 3, 1, 2]))
            kind = helper.make_tensor_type_proto(kind.tensor_type.elem_type, _open_shape(folded, tensor))
        else:
            nodes.append(helper.make_node("Identity", [tensor.name], [written], f"output_{index}"))
        outputs.append(helper.make_value_info(written, kind))
    constants = [tensor for name, tensor in folded.constants.items() if name in needed]
    kinds = [(name, kind) for name, kind in folded.types.items() if name in needed and name not in folded.constants]
    return helper.make_graph(
        nodes,
        "network",
        [value for value in model.graph.input if value.name == image],
        outputs,
        constants,
        value_info=[helper.make_value_info(name, kind) for name, kind in kinds if name != image],
    )
