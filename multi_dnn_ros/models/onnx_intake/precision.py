"""Converts half-precision networks to float32, because a parameter, not the file, selects the precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def to_float32(model: Any) -> bool:
    """Turn float16 and bfloat16 into float32 everywhere in an onnx.ModelProto, in place. True if any was found."""
    from onnx import TensorProto, numpy_helper

    half = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
    found = False
    for graph in _graphs(model.graph):
        tensors = list(graph.initializer)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in ("to", "dtype", "stash_type", "output_dtype") and attribute.i in half:
                    attribute.i = TensorProto.FLOAT
                    found = True
                if attribute.HasField("t"):
                    tensors.append(attribute.t)
        for tensor in tensors:
            if tensor.data_type not in half:
                continue
            found = True
            if tensor.data_location == TensorProto.EXTERNAL:  # the data was not read: change the type only
                tensor.data_type = TensorProto.FLOAT
                continue
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in half:
                value.type.tensor_type.elem_type = TensorProto.FLOAT
                found = True
    return found


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
            for each in attribute.graphs:
                yield from _graphs(each)
