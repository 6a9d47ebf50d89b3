"""Later versions of operators that onnx2torch has in an earlier version, if they only allow more data types."""

from __future__ import annotations

from typing import Any

from onnx import defs

from multi_dnn_ros.models.onnx_intake.converters.registration import registry, versions_of


def register_later_versions() -> None:
    """Register the converter of an operator for each later version with the same inputs, outputs and attributes.

    A version with another signature needs a converter of its own.
    """
    for operator in sorted({entry.operation_type for entry in registry._CONVERTER_REGISTRY if not entry.domain}):
        known, signature = None, None
        for version in versions_of(operator):
            entry = registry.OperationDescription(defs.ONNX_DOMAIN, operator, version)
            present = _signature(defs.get_schema(operator, version))
            if entry in registry._CONVERTER_REGISTRY:
                known, signature = registry._CONVERTER_REGISTRY[entry], present
            elif known is not None and present == signature:
                registry.add_converter(operation_type=operator, version=version)(known)
            else:
                known = None


def _signature(schema: Any) -> tuple[Any, ...]:
    attributes = {
        name: (str(attribute.type), attribute.required, attribute.default_value.SerializeToString())
        for name, attribute in schema.attributes.items()
    }
    sides = [[(each.name, str(each.option)) for each in side] for side in (schema.inputs, schema.outputs)]
    return (attributes, sides)
