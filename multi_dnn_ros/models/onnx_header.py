"""What an ONNX file declares (inputs, outputs, operators, metadata), read without its weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extras import MissingExtra, optional
from multi_dnn_ros.models.errors import ModelError


@dataclass(frozen=True)
class Value:
    """An input or output. shape: has 0 for a free axis; None: not stated in the file. dtype: such as "float32"."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True)
class OnnxHeader:
    """What an ONNX file declares.

    producer: name and version of the program that wrote the file. opsets: version by domain; "" is the domain of the
    standard operators. operators: number of uses of each operator, most frequent first, including those inside If and
    Loop. metadata: keys and values as the exporter wrote them.
    """

    producer: str
    opsets: dict[str, int]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    operators: dict[str, int]
    metadata: dict[str, str]


def read_onnx_header(path: Path) -> OnnxHeader:
    """Read what `path` declares. Raises ModelError, which names the file and says why it cannot be read."""
    try:
        with optional(f"{path}: an ONNX file"):
            import onnx
    except MissingExtra as error:
        raise ModelError(str(error)) from None
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:
        raise ModelError(f"{path}: cannot be read as ONNX: {type(error).__name__}: {summarize_error(error)}") from None
    constants = {tensor.name for tensor in model.graph.initializer}
    return OnnxHeader(
        producer=" ".join(part for part in (model.producer_name, model.producer_version) if part),
        opsets={entry.domain: entry.version for entry in model.opset_import},
        inputs=tuple(_value(value) for value in model.graph.input if value.name not in constants),
        outputs=tuple(_value(value) for value in model.graph.output),
        operators=dict(_operators(model.graph).most_common()),
        metadata={entry.key: entry.value for entry in model.metadata_props},
    )


def _value(value: Any) -> Value:
    from onnx import TensorProto

    tensor = value.type.tensor_type
    shape = tuple(axis.dim_value for axis in tensor.shape.dim) if tensor.HasField("shape") else None
    names = {number: name.lower() for name, number in TensorProto.DataType.items()}
    dtype = names.get(tensor.elem_type, str(tensor.elem_type))
    return Value(value.name, shape, {"float": "float32", "double": "float64"}.get(dtype, dtype))


def _operators(graph: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in graph.node:
        found[f"{node.domain}.{node.op_type}" if node.domain else node.op_type] += 1
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found += _operators(inner)
    return found
