"""Extra outputs of an ONNX model that show NaN where ONNX Runtime loses it.

PyTorch's max pooling returns NaN where its window holds one; ONNX Runtime's returns the largest number beside it. And
an 8-bit integer has no NaN. A frame of which a network makes NaN would be answered with wrong results that look right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx

from multi_dnn_ros.backends.onnx_export import ExportedChain

_PREFIX = "nan_guard_"
#: Operators that make NaN of numbers; others pass on what they get.
_SOURCES = ("Acos", "Asin", "Div", "Log", "Pow", "Reciprocal", "Sqrt")


def add_guards(chain: ExportedChain) -> ExportedChain:
    """The chain, in place, with the names of new outputs that hold NaN where an image makes NaN that would be lost.

    Each is the mean of the input of a max pooling, per channel, which costs one more read of it and keeps the blocked
    layout of convolutions; or the sum of what is quantized behind an operator that can make NaN.
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
