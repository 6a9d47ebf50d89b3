"""Computes the shapes and constants of an ONNX graph in one pass, in the order of the nodes.

Exporters write sizes as chains of small operators (Shape, Gather, Concat, Reshape). With a fixed input size each of
them is a constant. The pass infers the type of every value (onnx.shape_inference, one node at a time), computes what
depends on constants only (onnx.reference), and replaces If by the branch that its constant condition selects. Values
whose shape depends on the content of the image are reported, not computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.onnx_intake.dequantization import dequantized
from multi_dnn_ros.models.onnx_intake.refusal import Refusal, node_name

#: Elements of the largest tensor inside a network: 2 GiB as float32.
MAX_ELEMENTS = 1 << 29
#: Constants of up to this many elements take part in shape inference: sizes, axes, repeats.
_SMALL = 4096
#: Constants of up to this many elements are computed here, larger ones when the network is traced. Only changes of type
#: and layout are also computed for larger weights, up to MAX_ELEMENTS in total.
_FOLDED = 1 << 18
_CHEAP = {"Cast", "DequantizeLinear", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
#: Not computed here: control flow may not terminate, random numbers are not constants, the others read encoded data.
_NEVER = {"Loop", "Scan", "If", "SequenceMap", "ImageDecoder", "RegexFullMatch", "Multinomial", "Bernoulli"}
#: Operators that ONNX defines by other operators, without shape inference; the output has the type of the first input.
_SAME_TYPE = {"GroupNormalization", "MeanVarianceNormalization"}
#: Operators whose number of output rows depends on the values of their inputs.
_COUNTING = {"NonMaxSuppression", "NonZero", "Compress", "Unique"}


@dataclass
class Folded:
    """A graph after the pass.

    types: onnx.TypeProto by name of a value. nodes: the remaining nodes, in order. constants: onnx.TensorProto by name.
    dynamic: name of a value of unknown shape -> the node that causes it.
    """

    types: dict[str, Any] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    dynamic: dict[str, Any] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a value; None unless every axis is known."""
        return shape_of(self.types.get(name))


def shape_of(value_type: Any) -> tuple[int, ...] | None:
    """Shape in an onnx.TypeProto; None unless every axis is known."""
    if value_type is None or not value_type.tensor_type.HasField("shape"):
        return None
    axes = value_type.tensor_type.shape.dim
    return tuple(axis.dim_value for axis in axes) if all(axis.HasField("dim_value") for axis in axes) else None


def fold(model: Any, *, static: bool) -> Folded:
    """Infer and fold the graph of an onnx.ModelProto, which is not changed.

    static: the input size is fixed, so an unknown shape depends on the content of the image and is reported in
    `dynamic`; otherwise unknown shapes are accepted. Raises Refusal for values that no earlier node writes (a cycle, or
    nodes out of order), unknown operators, and tensors of more than MAX_ELEMENTS elements.
    """
    folding = _Folding(model, static)
    for value in model.graph.input:
        folding.result.types[value.name] = value.type
    folding.add_constants(model.graph.initializer)
    folding.run(model.graph.node)
    return folding.result


class _Folding:
    def __init__(self, model: Any, static: bool) -> None:
        self.opsets = {entry.domain: entry.version for entry in model.opset_import}
        self.opset_imports = list(model.opset_import)
        self.ir_version = model.ir_version
        self.static = static
        self.result = Folded()
        self.values: dict[str, np.ndarray] = {}
        self.affordable_elements = MAX_ELEMENTS  # of large constants that may still be computed here

    def add_constants(self, tensors: Sequence[Any]) -> None:
        from onnx import helper

        for tensor in tensors:
            self.result.constants[tensor.name] = tensor
            kind = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            self.result.types[tensor.name] = kind
            self._check_size(tensor.name, kind, None)

    def run(self, nodes: Sequence[Any], depth: int = 0) -> None:
        for node in nodes:
            self._visit(node, depth)

    def _visit(self, node: Any, depth: int) -> None:
        result = self.result
        for name in node.input:
            if name and name not in result.types and name not in result.dynamic:
                raise Refusal(
                    f"operator {node_name(node)} reads {name[:80]!r}, which no operator before it writes: the graph "
                    "has a cycle or is not sorted"
                )
        for name in node.output:
            if name and (name in result.types or name in result.dynamic):
                raise Refusal(f"operator {node_name(node)} writes {name[:80]!r}, which is already written")
        cause = next((result.dynamic[name] for name in node.input if name in result.dynamic), None)
        if cause is None and node.op_type == "If" and node.domain in ("", "ai.onnx"):
            self._choose_branch(node, depth)
            return
        if cause is None and self._is_constant(node) and self._compute(node):
            return
        if cause is None:
            cause = self._infer(node)
        if cause is not None:
            result.dynamic.update((name, cause) for name in node.output if name)
        result.nodes.append(node)

    def _choose_branch(self, node: Any, depth: int) -> None:
        from onnx import helper

        condition = self._value(node.input[0])
        if condition is None or depth > 16:
            raise Refusal(
                f"operator {node_name(node)}: its condition depends on the image; allowed: conditions that the input "
                "size decides; export the network without branches"
            )
        wanted = "then_branch" if bool(condition.reshape(-1)[:1].any()) else "else_branch"
        branch = next((attribute.g for attribute in node.attribute if attribute.name == wanted), None)
        if branch is None or len(branch.output) < len(node.output):
            raise Refusal(f"cannot be read as ONNX: operator {node_name(node)} has no {wanted}")
        self.add_constants(branch.initializer)
        self.run(branch.node, depth + 1)
        for inner, outer in zip(branch.output, node.output, strict=False):
            self._visit(helper.make_node("Identity", [inner.name], [outer], f"{node.name}_{outer}"), depth + 1)

    def _schema(self, node: Any) -> Any:
        from onnx import defs

        domain = "" if node.domain == "ai.onnx" else node.domain
        version = self.opsets.get(domain, self.opsets.get("ai.onnx") if not domain else None)
        if version is None:
            raise Refusal(f"operator {node_name(node)}: its operator set is not imported by the file; export it again")
        try:
            return defs.get_schema(node.op_type, version, domain)
        except defs.SchemaError:
            raise Refusal(
                f"operator {node_name(node)} is not part of ONNX opset {version}; allowed: standard operators; export "
                "the network without custom operators"
            ) from None

    def _infer(self, node: Any) -> Any:
        """Add the types of the outputs. Returns the node if the shape of an output depends on values, else None."""
        from onnx import TypeProto, shape_inference

        types = {name: self.result.types[name] for name in node.input if name}
        data = {name: tensor for name in node.input if name and (tensor := self._small(name)) is not None}
        schema = self._schema(node)
        try:
            inferred = shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=self.opset_imports, ir_version=self.ir_version
            )
        except Exception as error:
            raise Refusal(
                f"operator {node_name(node)} does not fit its inputs: {summarize_error(error)}; export it again"
            ) from None
        unknown = node.op_type in _COUNTING
        for name in node.output:
            if not name:
                continue
            kind = inferred.get(name)
            if kind is None or not kind.tensor_type.HasField("shape"):
                kind = types[node.input[0]] if node.op_type in _SAME_TYPE else TypeProto()
            self._check_size(name, kind, node)
            unknown |= self.static and shape_of(kind) is None
            self.result.types[name] = kind
        if not unknown:
            return None
        for name in node.output:
            self.result.types.pop(name, None)
        return node

    def _check_size(self, name: str, kind: Any, node: Any) -> None:
        axes = [axis.dim_value for axis in kind.tensor_type.shape.dim if axis.HasField("dim_value")]
        if any(axis < 0 for axis in axes) or math.prod(max(axis, 1) for axis in axes) > MAX_ELEMENTS:
            what = f"operator {node_name(node)}: output {name[:80]!r}" if node is not None else f"tensor {name[:80]!r}"
            raise Refusal(f"{what} has the shape {tuple(axes)[:8]}; allowed: at most {MAX_ELEMENTS} elements")

    def _is_constant(self, node: Any) -> bool:
        if node.op_type in ("Shape", "Size") and node.domain in ("", "ai.onnx"):
            return self.result.shape(node.input[0]) is not None if node.input else False
        if node.op_type in _NEVER or node.op_type.startswith("Random") or node.domain not in ("", "ai.onnx"):
            return False
        if not node.input and node.op_type != "Constant":
            return False
        return all(not name or name in self.result.constants for name in node.input)

    def _compute(self, node: Any) -> bool:
        """Replace the node by its value. Returns False if the value is too large or cannot be computed here."""
        from onnx import numpy_helper

        self._schema(node)  # raises Refusal for an unknown operator
        if node.op_type == "Shape":
            values = {node.output[0]: self._shape_value(node)}
        elif node.op_type == "Size":
            values = {node.output[0]: np.array(math.prod(self.result.shape(node.input[0]) or (0,)), np.int64)}
        else:
            if not (self._has_few_inputs(node) if node.op_type in _COUNTING else self._is_affordable(node)):
                return False
            inputs = {name: self._value(name) for name in node.input if name}
            if any(value is None for value in inputs.values()):
                return False
            found = self._evaluate(node, inputs)
            if found is None:
                return False
            values = found
        for name, value in values.items():
            if value.size <= _FOLDED:
                self.values[name] = value
            self.add_constants([numpy_helper.from_array(value, name)])
        return True

    def _evaluate(self, node: Any, inputs: dict[str, Any]) -> dict[str, np.ndarray] | None:
        """Outputs of a node by name, from ONNX's reference implementation; None if that lacks the operator."""
        from onnx import helper
        from onnx.reference import ReferenceEvaluator
        from onnx.reference.op_run import RuntimeImplementationError

        if node.op_type == "DequantizeLinear":  # the reference implementation lacks opsets before 19
            return {node.output[0]: dequantized(node, inputs)}

        names = [name for name in node.output if name]
        given, results = ([helper.make_empty_tensor_value_info(name) for name in side] for side in (inputs, names))
        graph = helper.make_graph([node], "node", given, results)
        model = helper.make_model(graph, opset_imports=self.opset_imports, ir_version=self.ir_version)
        try:
            with np.errstate(all="ignore"):
                found = ReferenceEvaluator(model).run(None, inputs)
        except RuntimeImplementationError:
            return None
        except Exception as error:
            raise Refusal(
                f"operator {node_name(node)} cannot be computed from its constants: {summarize_error(error)}"
            ) from None
        return {name: np.asarray(value) for name, value in zip(names, found, strict=True)}

    def _has_few_inputs(self, node: Any) -> bool:
        """Whether a node of _COUNTING may be computed here; the size of its outputs depends on its values."""
        limit = _SMALL if node.op_type == "NonMaxSuppression" else _FOLDED  # the reference compares boxes in pairs
        return sum(math.prod(self.result.shape(name) or ()) for name in node.input if name) <= limit

    def _is_affordable(self, node: Any) -> bool:
        limit = MAX_ELEMENTS if node.op_type in _CHEAP else _FOLDED
        if node.op_type == "Constant":
            return True
        if self._infer(node) is not None:
            return False
        elements = 0
        for name in (*node.input, *node.output):
            shape = self.result.shape(name)
            elements += math.prod(shape) if shape is not None else (limit + 1 if name else 0)
        for name in node.output:
            self.result.types.pop(name, None)
        if elements > _FOLDED:
            self.affordable_elements -= elements
        return elements <= limit and self.affordable_elements >= 0

    def _shape_value(self, node: Any) -> np.ndarray:
        options = {attribute.name: attribute.i for attribute in node.attribute}
        shape = self.result.shape(node.input[0]) or ()
        return np.array(shape[slice(options.get("start", 0), options.get("end"))], np.int64)

    def _small(self, name: str) -> Any:
        tensor = self.result.constants.get(name)
        return tensor if tensor is not None and math.prod(tensor.dims) <= _SMALL and not _is_external(tensor) else None

    def _value(self, name: str) -> np.ndarray | None:
        """The value of a constant; None: not a constant, or its data was not read."""
        from onnx import numpy_helper

        if name in self.values:
            return self.values[name]
        tensor = self.result.constants.get(name)
        return None if tensor is None or _is_external(tensor) else numpy_helper.to_array(tensor)


def _is_external(tensor: Any) -> bool:
    from onnx import TensorProto

    return bool(tensor.data_location == TensorProto.EXTERNAL)
