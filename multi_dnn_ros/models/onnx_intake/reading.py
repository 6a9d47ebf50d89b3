"""Reads an untrusted ONNX file: sizes are limited, and weights must be in the model's own folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multi_dnn_ros.models.onnx_intake.refusal import Refusal, node_name

#: Maximum total size of the weights of one network, bytes.
MAX_WEIGHT_BYTES = (2 << 30) - (1 << 20)
#: Maximum number of operators of one network, including those of subgraphs and functions.
MAX_NODES = 50_000
#: Maximum nesting of subgraphs.
_MAX_DEPTH = 16
#: A protobuf message cannot be larger.
_MAX_FILE_BYTES = (2 << 30) - 1


def read_model(path: Path) -> Any:
    """The onnx.ModelProto of `path` with its weights inside.

    Raises Refusal if a size exceeds its limit, if external data is missing, too short or outside the model's folder,
    and if the data of a tensor does not fit its shape. A damaged file raises the errors of protobuf and onnx.
    """
    import onnx

    size = path.stat().st_size
    if size > _MAX_FILE_BYTES:
        raise Refusal(f"has {size} bytes; allowed: {_MAX_FILE_BYTES}; save its weights as external data")
    model = onnx.load(path, load_external_data=False)
    if not model.graph.node and not model.graph.output:
        raise Refusal("cannot be read as ONNX: it holds no graph")
    total = 0
    external = False
    for tensor in tensors_of(model):
        total += _check_tensor(tensor, path.parent)
        external |= tensor.data_location == onnx.TensorProto.EXTERNAL
        if total > MAX_WEIGHT_BYTES:
            raise Refusal("its weights have more than 2 GiB, the largest size allowed")
    if external:
        onnx.load_external_data_for_model(model, str(path.parent))
    return model


def tensors_of(model: Any) -> Iterator[Any]:
    """Every onnx.TensorProto of a model: initializers and attributes, also in subgraphs and functions."""
    nodes = 0
    graphs: list[tuple[Any, int]] = [(model.graph, 0), *((function, 0) for function in model.functions)]
    while graphs:
        graph, depth = graphs.pop()
        if depth > _MAX_DEPTH:
            raise Refusal(f"has subgraphs in {depth} levels; allowed: {_MAX_DEPTH}")
        nodes += len(graph.node)
        if nodes > MAX_NODES:
            raise Refusal(f"has more than {MAX_NODES} operators, the largest number allowed")
        yield from getattr(graph, "initializer", ())
        if len(getattr(graph, "sparse_initializer", ())):
            raise Refusal("has sparse weights; allowed: dense weights; export it again without sparse tensors")
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                    raise Refusal(f"operator {node_name(node)} has a sparse tensor; allowed: dense tensors")
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                if attribute.HasField("g"):
                    graphs.append((attribute.g, depth + 1))
                graphs += [(each, depth + 1) for each in attribute.graphs]


def _check_tensor(tensor: Any, folder: Path) -> int:
    """Size of the tensor in bytes. Raises Refusal if its data does not fit its shape."""
    from onnx import TensorProto, helper

    name = tensor.name[:80] or "of an operator"
    if tensor.data_type == TensorProto.STRING:
        raise Refusal(f"tensor {name} holds text; allowed: numbers")
    try:
        item = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError:
        raise Refusal(f"cannot be read as ONNX: tensor {name} has the unknown data type {tensor.data_type}") from None
    count = 1
    for axis in tensor.dims:
        count *= axis
        if axis < 0 or count > MAX_WEIGHT_BYTES:
            raise Refusal(
                f"cannot be read as ONNX: tensor {name} claims the shape {tuple(tensor.dims)[:8]}; allowed: at most "
                "2 GiB"
            )
    packed = tensor.data_type in _packed_types()
    expected = (count + 1) // 2 if packed else count * item
    if tensor.data_location == TensorProto.EXTERNAL:
        _check_external(tensor, name, folder, expected)
    elif tensor.raw_data and len(tensor.raw_data) != expected:
        raise Refusal(
            f"cannot be read as ONNX: tensor {name} of shape {tuple(tensor.dims)[:8]} needs {expected} bytes, but has "
            f"{len(tensor.raw_data)}"
        )
    return expected


def _packed_types() -> set[int]:
    """Data types that store two numbers in a byte."""
    from onnx import TensorProto

    return {getattr(TensorProto, name) for name in ("INT4", "UINT4", "FLOAT4E2M1") if hasattr(TensorProto, name)}


def _check_external(tensor: Any, name: str, folder: Path, expected: int) -> None:
    fields = {entry.key: entry.value for entry in tensor.external_data}
    location = fields.get("location", "")
    shown = f"external data '{location[:120]}' of tensor {name}"
    if not location or "\0" in location or os.path.isabs(location) or "\\" in location:
        raise Refusal(f"cannot be read as ONNX: {shown}: expected a file name relative to the model's folder")
    file = folder / location
    inside = Path(os.path.normpath(file))
    if not inside.is_relative_to(folder) or not file.resolve().is_relative_to(folder.resolve()):
        raise Refusal(f"cannot be read as ONNX: {shown} is outside of the model's folder; move it beside the model")
    if not file.is_file():
        raise Refusal(f"cannot be read as ONNX: its weights {name} are in {file}, and there is no such file")
    try:
        offset, length = int(fields.get("offset", 0) or 0), int(fields.get("length", 0) or 0)
    except ValueError:
        raise Refusal(f"cannot be read as ONNX: {shown}: offset or length is not a number") from None
    size = file.stat().st_size
    end = offset + (length or expected)
    if offset < 0 or length < 0 or end > size:
        raise Refusal(
            f"cannot be read as ONNX: its weights {name} end at byte {end} of {file}, which has {size} bytes; copy the "
            "file again"
        )
    if (length or size - offset) != expected:
        raise Refusal(
            f"cannot be read as ONNX: {shown} has {length or size - offset} bytes; its shape needs {expected}"
        )
