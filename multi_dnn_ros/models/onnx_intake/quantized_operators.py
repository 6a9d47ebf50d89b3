"""Replaces quantized operators by DequantizeLinear, the operator in float32, and QuantizeLinear.

ONNX Runtime's quantization writes such operators in its operator-oriented format (QLinearConv, QLinearMatMul, and
operators of its own domain such as QLinearAdd) and for dynamic quantization (DynamicQuantizeLinear, ConvInteger,
MatMulInteger). Weights become float32 here; activations are rounded as in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from multi_dnn_ros.models.onnx_intake.refusal import Refusal, node_name

_OWN_DOMAIN = "com.microsoft"
#: Operators with one quantized input. They read X, its scale and zero point, and the output's scale and zero point.
_UNARY = {
    "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearReduceMean": "ReduceMean",
    "QLinearSigmoid": "Sigmoid",
    "QLinearSoftmax": "Softmax",
}
_BINARY = {"QLinearAdd": "Add", "QLinearMul": "Mul"}
#: Attributes of ONNX Runtime's operators that the standard ones lack, with the values that change nothing.
_EXTRA = {"channels_last": (0,), "opset": None}


def expand_quantized(model: Any) -> bool:
    """Replace the quantized operators of an onnx.ModelProto, in place. True if it has operators that round activations.

    Raises Refusal for weights that are not constant, and for operators of ONNX Runtime's own domain without a
    replacement.
    """
    rewriting = _Rewriting(model)
    rewriting.run()
    return rewriting.found or any(node.op_type == "QuantizeLinear" for node in model.graph.node)


class _Rewriting:
    def __init__(self, model: Any) -> None:
        self.model = model
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                self.constants[node.output[0]] = node.attribute[0].t
        self.nodes: list[Any] = []
        self.found = False
        self.count = 0

    def run(self) -> None:
        standard_steps: dict[str, Callable[[Any], None]] = {
            "QLinearConv": self._convolution,
            "QLinearMatMul": self._product,
            "ConvInteger": self._integers,
            "MatMulInteger": self._integers,
            "DynamicQuantizeLinear": self._dynamic,
        }
        own_steps: dict[str, Callable[[Any], None]] = {
            **dict.fromkeys(_UNARY, self._unary),
            **dict.fromkeys(_BINARY, self._binary),
            "QLinearConcat": self._concat,
            "QGemm": self._gemm,
            "QuantizeLinear": self._move_to_standard_domain,
            "DequantizeLinear": self._move_to_standard_domain,
        }
        for node in self.model.graph.node:
            steps = own_steps if node.domain == _OWN_DOMAIN else standard_steps if not node.domain else {}
            step = steps.get(node.op_type)
            if step is not None:
                step(node)
                self.found = True
            elif node.domain == _OWN_DOMAIN and node.op_type.startswith(("Q", "DynamicQuantize")):
                raise Refusal(
                    f"operator {node_name(node)} is a quantized operator of ONNX Runtime without a float32 "
                    "counterpart here; quantize the network with quant_format=QuantFormat.QDQ, or use its float32 file"
                )
            else:
                self.nodes.append(node)
        if self.found:
            del self.model.graph.node[:]
            self.model.graph.node.extend(self.nodes)

    def _add(self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Add a node; returns the name of its output."""
        from onnx import helper

        self.count += 1
        output = output or f"float32_{self.count}_of_quantized"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], f"{operator}_{self.count}", **attributes))
        return output

    def _constant(self, value: np.ndarray) -> str:
        from onnx import numpy_helper

        self.count += 1
        tensor = numpy_helper.from_array(value, f"float32_{self.count}_of_weights")
        self.model.graph.initializer.append(tensor)
        return str(tensor.name)

    def _value(self, node: Any, index: int) -> np.ndarray | None:
        """Value of a constant input; None: not given. External data that was not read counts as zeros."""
        from onnx import TensorProto, numpy_helper

        if len(node.input) <= index or not node.input[index]:
            return None
        tensor = self.constants.get(node.input[index])
        if tensor is None:
            raise Refusal(
                f"operator {node_name(node)}: input {index} is computed by the network; allowed: constant weights and "
                "scales; quantize the network with quant_format=QuantFormat.QDQ"
            )
        if tensor.data_location == TensorProto.EXTERNAL:
            return np.zeros(tuple(tensor.dims), np.float32)
        return numpy_helper.to_array(tensor)

    def _weights(self, node: Any, first: int, axis: int) -> np.ndarray:
        """Weights as float32, from inputs `first` to `first + 2`: values, scale and zero point.

        Scale and zero point: one for the tensor, or one for each index of `axis`.
        """
        values, scale, zero = (self._value(node, first + offset) for offset in range(3))
        if values is None or scale is None:
            raise Refusal(f"operator {node_name(node)} needs weights and their scale")

        def along(parameter: np.ndarray) -> np.ndarray:
            if parameter.size == 1:
                return parameter.astype(np.float32).reshape(())
            if not values.ndim or parameter.size != values.shape[axis]:
                raise Refusal(
                    f"operator {node_name(node)}: {parameter.size} scales do not fit the shape {values.shape}"
                )
            shape = [-1 if i == axis % values.ndim else 1 for i in range(values.ndim)]
            return parameter.astype(np.float32).reshape(shape)

        shifted = values.astype(np.float32) - (0 if zero is None else along(zero))
        return np.asarray(shifted * along(scale), np.float32)

    def _dequantized(self, node: Any, first: int) -> str:
        """A quantized input (values, scale and zero point) as float32."""
        return self._add("DequantizeLinear", [name for name in node.input[first : first + 3] if name])

    def _write_quantized(self, node: Any, value: str, first: int) -> None:
        self._add("QuantizeLinear", [value, *(name for name in node.input[first : first + 2] if name)], node.output[0])

    def _convolution(self, node: Any) -> None:
        inputs = [self._dequantized(node, 0), self._constant(self._weights(node, 3, 0))]
        bias = self._value(node, 8)
        if bias is not None:  # integers, in units of the product of both scales
            steps = np.asarray(self._value(node, 1), np.float32) * np.asarray(self._value(node, 4), np.float32)
            inputs.append(self._constant(np.asarray(bias.astype(np.float32) * steps.reshape(-1), np.float32)))
        self._write_quantized(node, self._add("Conv", inputs, **_attributes(node)), 6)

    def _product(self, node: Any) -> None:
        constant = node.input[3] in self.constants
        second = self._constant(self._weights(node, 3, -1)) if constant else self._dequantized(node, 3)
        self._write_quantized(node, self._add("MatMul", [self._dequantized(node, 0), second]), 6)

    def _gemm(self, node: Any) -> None:
        attributes = _attributes(node)
        weights = self._weights(node, 3, 0 if attributes.get("transB") else -1)
        inputs = [self._dequantized(node, 0), self._constant(weights)]
        bias = self._value(node, 6)
        if bias is not None:
            steps = np.asarray(self._value(node, 1), np.float32) * np.asarray(self._value(node, 4), np.float32)
            inputs.append(self._constant(np.asarray(bias.astype(np.float32) * steps.reshape(-1), np.float32)))
        output = node.output[0] if len(node.input) < 8 else ""
        result = self._add("Gemm", inputs, output, **attributes)
        if not output:
            self._write_quantized(node, result, 7)

    def _unary(self, node: Any) -> None:
        result = self._add(_UNARY[node.op_type], [self._dequantized(node, 0)], **_attributes(node))
        self._write_quantized(node, result, 3)

    def _binary(self, node: Any) -> None:
        result = self._add(_BINARY[node.op_type], [self._dequantized(node, 0), self._dequantized(node, 3)])
        self._write_quantized(node, result, 6)

    def _concat(self, node: Any) -> None:
        parts = [self._dequantized(node, first) for first in range(2, len(node.input), 3)]
        self._write_quantized(node, self._add("Concat", parts, **_attributes(node)), 0)

    def _move_to_standard_domain(self, node: Any) -> None:
        node.domain = ""
        self.nodes.append(node)

    def _integers(self, node: Any) -> None:
        """ConvInteger, MatMulInteger: sums of integer products, computed in float32."""
        from onnx import TensorProto

        values = self._add("Cast", [node.input[0]], to=TensorProto.FLOAT)
        if len(node.input) > 2 and node.input[2]:
            zero = self._add("Cast", [node.input[2]], to=TensorProto.FLOAT)
            values = self._add("Sub", [values, zero])
        weights = self._value(node, 1)
        zeros = self._value(node, 3)
        assert weights is not None  # required by the operator
        shifted = weights.astype(np.float32)
        if zeros is not None:
            convolution = node.op_type == "ConvInteger" and zeros.size > 1
            shifted = shifted - zeros.astype(np.float32).reshape([-1] + [1] * (weights.ndim - 1) if convolution else -1)
        operator = node.op_type.removesuffix("Integer")
        product = self._add(operator, [values, self._constant(shifted)], **_attributes(node))
        self._add("Cast", [product], node.output[0], to=TensorProto.INT32)

    def _dynamic(self, node: Any) -> None:
        """DynamicQuantizeLinear: 256 steps from the smallest to the largest value; one of them is 0."""
        from onnx import TensorProto

        zero, one, top = (self._constant(np.array(number, np.float32)) for number in (0, 1, 255))
        source = node.input[0]
        high = self._add("Max", [self._add("ReduceMax", [source], keepdims=0), zero])
        low = self._add("Min", [self._add("ReduceMin", [source], keepdims=0), zero])
        step = self._add("Div", [self._add("Sub", [high, low]), top])
        scale = self._add("Where", [self._add("Equal", [step, zero]), one, step], node.output[1])
        unrounded = self._add("Clip", [self._add("Div", [self._add("Neg", [low]), scale]), zero, top])
        zero_point = self._add("Round", [unrounded])
        shifted = self._add("Add", [self._add("Round", [self._add("Div", [source, scale])]), zero_point])
        self._add("Cast", [self._add("Clip", [shifted, zero, top])], node.output[0], to=TensorProto.UINT8)
        self._add("Cast", [zero_point], node.output[2], to=TensorProto.UINT8)


def _attributes(node: Any) -> dict[str, Any]:
    """Attributes for the standard operator. Raises Refusal for one that it does not have."""
    from onnx import helper

    found = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    for name, allowed in _EXTRA.items():
        value = found.pop(name, None)
        if value is not None and allowed is not None and value not in allowed:
            raise Refusal(f"operator {node_name(node)}: {name} is {value}; allowed: {allowed[0]}")
    return found
