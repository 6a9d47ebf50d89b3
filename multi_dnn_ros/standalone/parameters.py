"""rclpy's `Parameter`, its types, and the checks of parameter descriptors."""

from __future__ import annotations

import array
import math
from enum import Enum
from typing import Any, Final

from multi_dnn_ros.standalone.messages import message_class
from multi_dnn_ros.standalone.missing import Surface

SEPARATOR: Final = "."
_ELEMENTS: Final[dict[int, type]] = {5: bytes, 6: bool, 7: int, 8: float, 9: str}
_SCALARS: Final[dict[type, int]] = {bool: 1, int: 2, float: 3, str: 4}
RELATIVE_TOLERANCE: Final = 1e-6
_FIELDS: Final = (
    *("", "bool_value", "integer_value", "double_value", "string_value", "byte_array_value", "bool_array_value"),
    *("integer_array_value", "double_array_value", "string_array_value"),
)


class ParameterTypes(Enum):
    """The possible types of a parameter, with the numbers of rcl_interfaces/ParameterType."""

    NOT_SET = 0
    BOOL = 1
    INTEGER = 2
    DOUBLE = 3
    STRING = 4
    BYTE_ARRAY = 5
    BOOL_ARRAY = 6
    INTEGER_ARRAY = 7
    DOUBLE_ARRAY = 8
    STRING_ARRAY = 9

    @classmethod
    def from_parameter_value(cls, value: Any) -> ParameterTypes:
        """Return the type of a Python value; an empty list is a byte array, as in rclpy.

        Raises:
            TypeError: for a value that cannot be a parameter; names it.
        """
        if value is None:
            return cls.NOT_SET
        for kind, number in _SCALARS.items():
            if isinstance(value, kind):
                return cls(number)
        if isinstance(value, (list, tuple, array.array)):
            for number, element in _ELEMENTS.items():
                if all(isinstance(item, element) for item in value):
                    return cls(number)
            raise TypeError(f"The given value is not a list of one of the allowed types '{value}'.")
        raise TypeError(f"The given value is not one of the allowed types '{value}'.")

    def check(self, value: Any) -> bool:
        """Return whether a value has this type."""
        if value is None:
            return self is ParameterTypes.NOT_SET
        if self.value in _ELEMENTS:
            element = _ELEMENTS[self.value]
            kinds = (list, tuple, array.array) if element in (int, float) else (list, tuple)
            fits = isinstance(value, kinds) and all(isinstance(item, element) for item in value)
            return fits and (element is not bytes or all(len(item) == 1 for item in value))
        return any(number == self.value and isinstance(value, kind) for kind, number in _SCALARS.items())


ParameterTypes.__name__, ParameterTypes.__qualname__ = "Type", "Parameter.Type"  # the names in error texts and pickles


class Parameter(Surface):
    """A parameter's name, type and value."""

    Type = ParameterTypes

    def __init__(self, name: str, type_: ParameterTypes | None = None, value: Any = None) -> None:
        if type_ is None:
            type_ = ParameterTypes.from_parameter_value(value)
        if not isinstance(type_, ParameterTypes):
            raise TypeError(f"type must be an instance of '{ParameterTypes!r}', not {type_!r}")
        if not type_.check(value):
            raise ValueError(f"Type '{type_}' and value '{value!r:.80}' of parameter {name!r} do not agree")
        self._name = name
        self._type = type_
        self._value = value

    @property
    def name(self) -> str:
        """The full name."""
        return self._name

    @property
    def type_(self) -> ParameterTypes:
        """The type of the value."""
        return self._type

    @property
    def value(self) -> Any:
        """The value, None if not set."""
        return self._value

    def __repr__(self) -> str:
        return f"Parameter(name={self._name!r}, type_={self._type.name}, value={self._value!r})"

    def get_parameter_value(self) -> Any:
        """Return a rcl_interfaces/ParameterValue."""
        message: Any = message_class("rcl_interfaces/msg/ParameterValue")(type=self._type.value)
        if self._type is not ParameterTypes.NOT_SET:
            value = self._value
            setattr(message, _FIELDS[self._type.value], list(value) if self._type.value in _ELEMENTS else value)
        return message

    def to_parameter_msg(self) -> Any:
        """Return a rcl_interfaces/Parameter."""
        return message_class("rcl_interfaces/msg/Parameter")(name=self._name, value=self.get_parameter_value())

    @classmethod
    def from_parameter_msg(cls, param_msg: Any) -> Parameter:
        """Return the parameter in a rcl_interfaces/Parameter.

        Raises:
            ValueError: if the message has an unknown type.
        """
        kind = ParameterTypes(param_msg.value.type)
        value = None if kind is ParameterTypes.NOT_SET else getattr(param_msg.value, _FIELDS[kind.value])
        return cls(param_msg.name, kind, value)


def parameter_value_to_python(parameter_value: Any) -> Any:
    """Return the Python value of a rcl_interfaces/ParameterValue.

    Raises:
        RuntimeError: if the message has an unknown type.
    """
    number = parameter_value.type
    if not 0 <= number < len(_FIELDS):
        raise RuntimeError(f"unexpected parameter type {number}")
    if number == 0:
        return None
    value = getattr(parameter_value, _FIELDS[number])
    return list(value) if number in _ELEMENTS else value


def refusal(parameter: Parameter, descriptor: Any, *, declared: bool, check_read_only: bool) -> str:
    """Return why a descriptor rejects a value, "" if it accepts it; sets the type of a dynamic descriptor."""
    kind = parameter.type_
    if check_read_only and descriptor.read_only:
        return f"Trying to set a read-only parameter: {parameter.name}."
    if descriptor.dynamic_typing:
        descriptor.type = kind.value
    elif declared and kind is ParameterTypes.NOT_SET:
        return "Static parameter cannot be undeclared"
    elif kind is not ParameterTypes.NOT_SET and kind.value != descriptor.type:
        return f"Wrong parameter type, expected '{ParameterTypes(descriptor.type)}' got '{kind}'"
    ranges: list[Any] = []
    if kind is ParameterTypes.INTEGER:
        ranges = descriptor.integer_range
    elif kind is ParameterTypes.DOUBLE:
        ranges = descriptor.floating_point_range
    return _range_refusal(parameter, ranges[0]) if ranges else ""


def _range_refusal(parameter: Parameter, limits: Any) -> str:
    value, step = parameter.value, limits.step
    low, high = sorted((limits.from_value, limits.to_value))
    if isinstance(value, int):
        at_limit, distance = value in (low, high), (value - low) % step if step else 0
        outside, off_step = "out of range. ", "not a valid step"
    else:
        # Tolerate rounding errors at the limits and steps.
        at_limit = any(math.isclose(value, limit, rel_tol=RELATIVE_TOLERANCE) for limit in (low, high))
        outside, off_step = "out of range ", "not close enough to a valid step"
        distance = 0
        if step and low < value < high:
            nearest = low + round((value - low) / step) * step
            distance = not math.isclose(nearest, value, rel_tol=RELATIVE_TOLERANCE)
    if at_limit:
        return ""
    if not low < value < high:
        return f"Parameter {parameter.name} {outside}Min: {low}, Max: {high}, value: {value}"
    if distance:
        return (
            f"The parameter value for {parameter.name} is {off_step}. "
            f"Min: {low}, max: {high}, value: {value}, step: {step}"
        )
    return ""
