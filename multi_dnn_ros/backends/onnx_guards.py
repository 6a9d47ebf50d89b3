"""Extra outputs of an ONNX model that reveal NaN values which ONNX Runtime would lose.

PyTorch's max pooling returns NaN if its window contains one; ONNX Runtime's returns the largest of the other values. An
8-bit integer has no NaN at all. Without the extra outputs such a frame would get wrong results that look valid.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx

from multi_dnn_ros.backends.onnx_export import ExportedChain

_PREFIX = "nan_guard_"
#: Operators that can turn finite numbers into NaN; the others only propagate it.
_SOURCES = ("Acos", "Asin", "Div", "Log", "Pow", "Reciprocal", "Sqrt")


def add_guards(chain: ExportedChain) -> ExportedChain:
    """Add outputs to the model, in place, that are NaN if a NaN would be lost; returns the chain with their names.

    Each is either the mean per channel of a max pooling's input, which costs one more read of it but keeps the blocked
    layout of convolutions, or the sum of a tensor that is quantized after an operator in _SOURCES.
    """
    graph = chain.model.graph
    makers = {name: node.op_type for node in graph.node for name in node.output}
    pooled = dict.fromkeys(
        node.input[0]
        for node in graph.node
        if node.op_type == "MaxPool" and makers.get(node.input[0]) not in ("MaxPool", "DequantizeLinear")
    )
    rounded = dict.fromkeys(
        node.input[0]
        for node in graph.node
        if node.op_type == "QuantizeLinear" and makers.get(node.input[0]) in _SOURCES
    )
    names: list[str] = []
    for value, operator in {
        **dict.fromkeys(rounded, "ReduceSum"),
        **dict.fromkeys(pooled, "GlobalAveragePool"),
    }.items():
        names.append(f"{_PREFIX}{len(names)}")
        keep: dict[str, Any] = {"keepdims": 0} if operator == "ReduceSum" else {}
        graph.node.append(onnx.helper.make_node(operator, [value], names[-1:], name=names[-1], **keep))
        graph.output.append(onnx.helper.make_tensor_value_info(names[-1], onnx.TensorProto.FLOAT, None))
    return replace(chain, guards=tuple(names))
