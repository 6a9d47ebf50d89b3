"""Checks of values assigned to message fields: those of rosidl's generated Python with ROS_PYTHON_CHECK_FIELDS=1.

Jazzy's generated classes check only if that variable is set; here the checks are always on, so that a wrong value is
reported where it is assigned instead of where the message is sent. For images, some values are accepted as without that
variable: a numpy array of the field's type, and `bytes`, `bytearray` and `memoryview` for `uint8[]`, are copied without
checking the elements. An `array.array` of the field's type is not copied.

Source: rosidl_generator_py of ROS 2 Jazzy.
"""

from __future__ import annotations

import array
import math
from collections import UserList, UserString
from collections.abc import Callable, Sequence, Set
from typing import Any, Final, TypeAlias

import numpy as np

from multi_dnn_ros.standalone.interfaces import PRIMITIVE_BYTES, FieldType

Check: TypeAlias = Callable[[Any], Any]

TYPECODES: Final[dict[str, str]] = {
    "int8": "b",
    "uint8": "B",
    "char": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
}
_FLOAT32_MAX: Final = 3.4028234663852886e38
_COLLECTIONS: Final = (Sequence, Set, UserList)
_TEXT: Final = (str, UserString)


def make_check(type_name: str, field: str, kind: FieldType, message_class: Callable[[str], type]) -> Check:
    """Return a function that checks a value assigned to a field and returns it as stored in the message.

    The check raises AssertionError, which names field, message and value.
    """
    expect = _Expectation(type_name, field)
    element = _element_check(expect, kind, message_class)
    if kind.array is None and kind.sequence is None:
        return element
    if kind.base not in TYPECODES:
        return _list_check(expect, element, kind)
    return (
        _fixed_array_check(expect, element, kind) if kind.array is not None else _sequence_check(expect, element, kind)
    )


def make_conversion(type_name: str, field: str, kind: FieldType) -> Check | None:
    """Return a function that converts a constructor argument before its check, or None if none is needed.

    As in rosidl's constructors, `position=[0, 1]` is allowed for a `float64[]`, which an assignment rejects.
    """
    if kind.base not in TYPECODES or (kind.array is None and kind.sequence is None):
        return None
    code, expect = TYPECODES[kind.base], _Expectation(type_name, field)

    def convert(value: Any) -> Any:
        if isinstance(value, (array.array, np.ndarray, bytes, bytearray, memoryview, *_TEXT)):
            return value
        try:
            return np.array(value, code) if kind.array is not None else array.array(code, value)
        except (TypeError, ValueError, OverflowError) as error:
            raise expect.error(f"numbers of type {kind.base!r} ({error})", value) from error

    return convert


class _Expectation:
    """Formats errors about a field."""

    def __init__(self, type_name: str, field: str) -> None:
        self._type_name = type_name
        self._field = field

    def error(self, expected: str, value: Any) -> AssertionError:
        return AssertionError(
            f"The '{self._field}' field must be {expected}: {self._type_name}.{self._field} = {value!r:.80}"
        )


def _element_check(expect: _Expectation, kind: FieldType, message_class: Callable[[str], type]) -> Check:
    base = kind.base
    if base == "byte":
        return _byte_check(expect)
    if base in ("float32", "float64"):
        return _float_check(expect, base)
    if base == "string" and kind.string_bound:
        return _bounded_string_check(expect, kind.string_bound)
    if base in ("string", "bool"):
        return _type_check(expect, {"string": str, "bool": bool}[base])
    if kind.is_message:
        cls = message_class(base)
        return _type_check(expect, cls, f"a sub message of type '{cls.__name__}'")
    bits = 8 * PRIMITIVE_BYTES[base]
    signed = base.startswith("int")
    return _integer_check(expect, -(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1)


def _type_check(expect: _Expectation, cls: type, wanted: str = "") -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, cls):
            raise expect.error(wanted or f"of type '{cls.__name__}'", value)
        return value

    return check


def _byte_check(expect: _Expectation) -> Check:
    def check(value: Any) -> bytes:
        if not isinstance(value, (bytes, bytearray)) or len(value) != 1:
            raise expect.error("of type 'bytes' or 'ByteString' with length 1", value)
        return bytes(value)

    return check


def _float_check(expect: _Expectation, base: str) -> Check:
    limit = _FLOAT32_MAX if base == "float32" else math.inf

    def check(value: Any) -> float:
        if not isinstance(value, float):
            raise expect.error("of type 'float'", value)
        if (value < -limit or value > limit) and not math.isinf(value):
            raise expect.error(f"a float in [{-limit}, {limit}]", value)
        return value

    return check


def _bounded_string_check(expect: _Expectation, bound: int) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > bound:
            raise expect.error(f"string value not longer than {bound}", value)
        return value

    return check


def _integer_check(expect: _Expectation, low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if not isinstance(value, int):
            raise expect.error("of type 'int'", value)
        if not low <= value <= high:
            raise expect.error(f"an {'unsigned ' if not low else ''}integer in [{low}, {high}]", value)
        return value

    return check


def _is_collection(value: Any) -> bool:
    return isinstance(value, _COLLECTIONS) and not isinstance(value, _TEXT)


def _wanted(kind: FieldType) -> str:
    if kind.array is not None:
        return f"a set or sequence with length {kind.array} and each value of type '{kind.base}'"
    bound = f" with length <= {kind.sequence}" if kind.sequence else ""
    return f"a set or sequence{bound} and each value of type '{kind.base}'"


def _fits(kind: FieldType, length: int) -> bool:
    return length == kind.array if kind.array is not None else not kind.sequence or length <= kind.sequence


def _list_check(expect: _Expectation, element: Check, kind: FieldType) -> Check:
    wanted = _wanted(kind)

    def check(value: Any) -> list[Any]:
        if not _is_collection(value) or not _fits(kind, len(value)):
            raise expect.error(wanted, value)
        for item in value:
            element(item)
        return value if isinstance(value, list) else list(value)

    return check


def _fixed_array_check(expect: _Expectation, element: Check, kind: FieldType) -> Check:
    dtype, length, wanted = np.dtype(TYPECODES[kind.base]), kind.array, _wanted(kind)

    def check(value: Any) -> np.ndarray[Any, Any]:
        if isinstance(value, np.ndarray):
            if value.dtype != dtype or value.size != length:
                raise expect.error(f"a numpy array of {dtype} with a size of {length}", value)
            return value
        if not _is_collection(value) or len(value) != length:
            raise expect.error(wanted, value)
        for item in value:
            element(item)
        return np.array(list(value), dtype)

    return check


def _sequence_check(expect: _Expectation, element: Check, kind: FieldType) -> Check:
    code, wanted = TYPECODES[kind.base], _wanted(kind)
    dtype, is_bytes, bound = np.dtype(code), code == "B", kind.sequence

    def check(value: Any) -> array.array[Any]:
        # Ordered for images: the cheapest conversions first.
        if isinstance(value, array.array):
            if value.typecode != code:
                raise expect.error(f"an array.array() of type code '{code}'", value)
            result = value
        elif is_bytes and isinstance(value, (bytes, bytearray, memoryview)) and memoryview(value).itemsize == 1:
            view, result = memoryview(value), array.array(code)
            result.frombytes(view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes())
        elif isinstance(value, np.ndarray) and value.dtype == dtype:
            result = array.array(code)
            result.frombytes(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        elif not _is_collection(value):
            raise expect.error(wanted, value)
        else:
            result = array.array(code, [element(item) for item in value])
        if bound and len(result) > bound:
            raise expect.error(wanted, value)
        return result

    return check
