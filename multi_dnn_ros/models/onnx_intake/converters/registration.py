"""Adds converters to onnx2torch with its own `add_converter`, for every version of an operator.

The converters in this folder have the form of onnx2torch's own, a function (node, graph) -> OperationConverterResult,
so that they could be contributed. They replace those of onnx2torch that read sizes, axes or pads from tensors while the
network runs, because such a network cannot be exported. Here these are constants of the graph, read at conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from onnx import defs
from torch import nn

from multi_dnn_ros.common.extras import optional

with optional("an ONNX file"):  # for all modules of this folder
    from onnx2torch.node_converters import get_converter as get_converter
    from onnx2torch.node_converters import registry as registry
    from onnx2torch.node_converters.cast import TENSOR_TYPE_TO_TORCH_TYPE as TENSOR_TYPE_TO_TORCH_TYPE
    from onnx2torch.onnx_graph import OnnxGraph as OnnxGraph
    from onnx2torch.onnx_node import OnnxNode as OnnxNode
    from onnx2torch.utils.common import OnnxMapping as OnnxMapping
    from onnx2torch.utils.common import OnnxToTorchModule as OnnxToTorchModule
    from onnx2torch.utils.common import OperationConverterResult as OperationConverterResult
    from onnx2torch.utils.common import get_shape_from_value_info

Converter = TypeVar("Converter", bound=Callable[[OnnxNode, OnnxGraph], OperationConverterResult])


class Operator(nn.Module, OnnxToTorchModule):
    """An operator as a layer without weights: a function of tensors with fixed options."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__()
        self.function = function
        self.options = options

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, **self.options)

    def extra_repr(self) -> str:
        return self.function.__name__.strip("_")


def converter(*operators: str) -> Callable[[Converter], Converter]:
    """Decorator: register for every version of the named standard operators, in place of onnx2torch's own."""

    def register(function: Converter) -> Converter:
        for operator in operators:
            for version in versions_of(operator):
                # add_converter refuses to replace an entry, and there is no public way to remove one.
                registry._CONVERTER_REGISTRY.pop(
                    registry.OperationDescription(defs.ONNX_DOMAIN, operator, version), None
                )
                registry.add_converter(operation_type=operator, version=version)(function)
        return function

    return register


def versions_of(operator: str) -> list[int]:
    """Opsets that defined or changed a standard operator, as far as the installed onnx knows, ascending."""
    return sorted(_versions().get(operator, ()))


@cache
def _versions() -> dict[str, set[int]]:
    """By standard operator; cached because listing takes milliseconds and there are hundreds of registrations."""
    found: dict[str, set[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == defs.ONNX_DOMAIN:
            found.setdefault(schema.name, set()).add(schema.since_version)
    return found


def operator_result(
    node: OnnxNode, function: Callable[..., Any], inputs: Sequence[str] | None = None, **options: Any
) -> OperationConverterResult:
    """The result of a converter: `function` on the tensors `inputs` (all of the node's by default) with `options`."""
    names = tuple(node.input_values if inputs is None else inputs)
    return OperationConverterResult(Operator(function, options), OnnxMapping(names, tuple(node.output_values)))


def has_input(node: OnnxNode, index: int) -> bool:
    """Whether the optional input number `index` is given."""
    return len(node.input_values) > index and bool(node.input_values[index])


def constant(node: OnnxNode, graph: OnnxGraph, index: int, default: Any = None) -> Any:
    """Value of input number `index`, a list or one number; `default` if it is not given.

    Raises NotImplementedError if the input is not a constant.
    """
    if not has_input(node, index):
        return default
    return constant_tensor(node, graph, index).tolist()


def constant_tensor(node: OnnxNode, graph: OnnxGraph, index: int) -> torch.Tensor:
    """As :func:`constant`, but as a tensor, for an input that is given."""
    name = node.input_values[index]
    if name not in graph.initializers:
        raise NotImplementedError(
            f"operator {node.operation_type} (node {node.name!r}): input {index} ({name!r}) is computed by the "
            "network; allowed: a constant. If the input size is free, set input_width and input_height"
        )
    tensor: torch.Tensor = graph.initializers[name].to_torch()
    return tensor


def attribute_or_input(node: OnnxNode, graph: OnnxGraph, name: str, index: int) -> Any:
    """A value that early opsets have as the attribute `name`, later ones as input number `index`; None if not given."""
    if name in node.attributes:
        return node.attributes[name]
    return constant(node, graph, index)


def shape_of(graph: OnnxGraph, name: str) -> list[int]:
    """Shape of a value, 0 for a free axis. Raises NotImplementedError if even the number of axes is unknown."""
    if name in graph.initializers:
        return list(graph.initializers[name].to_torch().shape)
    if name not in graph.value_info or not graph.value_info[name].type.tensor_type.HasField("shape"):
        raise NotImplementedError(f"the shape of {name!r} is not known; set input_width and input_height")
    shape: list[int] = get_shape_from_value_info(graph.value_info[name])
    return shape
