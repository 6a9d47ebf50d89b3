"""An ONNX graph with constants folded and the shape of every value, for an input of known size.

Exporters write sizes as chains of small operators (Shape, Gather, Concat, Reshape). With a fixed input size each of
them is a constant. ONNX Runtime folds them and finds the shapes, also those of its own operators, such as quantized
ones. Values whose shape depends on the content of the image are reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.onnx_graph import ValueType, optimized, value_types
from multi_dnn_ros.models.onnx_intake.refusal import Refusal, node_name

#: Elements of the largest tensor inside a network, and of all tensors that do not depend on the image: 2 GiB as
#: float32.
MAX_ELEMENTS = 1 << 29


@dataclass(frozen=True)
class StaticGraph:
    """nodes: in order. constants: onnx.TensorProto by name. types: of the values that nodes write or that are inputs.
    dynamic: name of a value whose shape depends on the image -> the node that causes it; such values are not in types.
    """

    model: Any
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    types: dict[str, ValueType] = field(default_factory=dict)
    dynamic: dict[str, Any] = field(default_factory=dict)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a value; None unless every axis is known."""
        if name in self.constants:
            return tuple(self.constants[name].dims)
        return self.types[name].shape if name in self.types else None


def static_graph(model: Any, *, static: bool) -> StaticGraph:
    """Fold an onnx.ModelProto, which is not changed.

    static: the input size is fixed, so an unknown shape depends on the content of the image and is reported in
    `dynamic`; otherwise unknown shapes are accepted. Raises Refusal for what ONNX Runtime cannot run, and for tensors
    of more than MAX_ELEMENTS elements.
    """
    _check_sizes(model)
    graph = _folded(model, static)
    while graph.dynamic:  # ONNX Runtime folds what an operator consists of only when it is called again
        again = _folded(graph.model, static)
        if len(again.nodes) == len(graph.nodes):
            break
        graph = again
    return graph


def _folded(model: Any, static: bool) -> StaticGraph:
    try:
        folded = optimized(model, "BASIC")
        types = value_types(folded)
    except Exception as error:
        raise Refusal(f"ONNX Runtime cannot run it: {summarize_error(error)}") from None
    nodes = list(folded.graph.node)
    constants = {tensor.name: tensor for tensor in folded.graph.initializer}
    dynamic: dict[str, Any] = {}
    for node in nodes if static else ():
        cause = next((dynamic[name] for name in node.input if name in dynamic), None)
        for name in node.output:
            if name and (cause is not None or (types[name].is_tensor and types[name].shape is None)):
                dynamic[name] = cause = cause or node
                types.pop(name)
    return StaticGraph(folded, nodes, constants, types, dynamic)


def _check_sizes(model: Any) -> None:
    """Raise Refusal if a tensor, or those that ONNX Runtime would compute while folding, are too large."""
    from onnx import shape_inference

    try:
        inferred = shape_inference.infer_shapes(model)
    except Exception as error:
        raise Refusal(f"the shapes of its values cannot be found: {summarize_error(error)}") from None
    sizes = {
        value.name: math.prod(max(axis.dim_value, 1) for axis in value.type.tensor_type.shape.dim)
        for value in (*inferred.graph.value_info, *inferred.graph.output)
    }
    constants = {tensor.name for tensor in model.graph.initializer}
    folded = 0
    for node in model.graph.node:
        largest = max((sizes.get(name, 0) for name in node.output), default=0)
        if all(not name or name in constants for name in node.input):
            constants.update(node.output)
            folded += sum(sizes.get(name, 0) for name in node.output)
        if max(largest, folded) > MAX_ELEMENTS:
            raise Refusal(
                f"at operator {node_name(node)} its tensors take more than {MAX_ELEMENTS >> 28} GiB, the largest size "
                "allowed; choose a smaller input or network"
            )
