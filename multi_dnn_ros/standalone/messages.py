"""Message and service classes as rclpy has them, generated on first use from the interface registry.

A message class takes keywords, fills in the .msg file's defaults, checks every assigned value as rosidl's generated
Python does (AssertionError that names the field), and holds: unbounded and bounded sequences of numbers as
`array.array`, fixed arrays of numbers as numpy arrays, `byte` as bytes of length 1, all else as plain Python values.
"""

from __future__ import annotations

import array
import math
import threading
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import numpy as np

from multi_dnn_ros.standalone import definitions, interfaces
from multi_dnn_ros.standalone.interfaces import FieldType

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

_lock = threading.RLock()
_classes: dict[str, type[Message]] = {}
_services: dict[str, type[Service]] = {}


class Message:
    """Base of every generated message class; one property per field over a slot of the same name with an underscore."""

    __slots__: tuple[str, ...] = ()

    __msgtype__: ClassVar[str]
    __field_names__: ClassVar[tuple[str, ...]] = ()
    __field_defaults__: ClassVar[tuple[tuple[str, str, Callable[[], Any]], ...]] = ()
    __field_types__: ClassVar[dict[str, str]] = {}

    if TYPE_CHECKING:  # the fields of a generated class

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, **fields: Any) -> None:
        for name, slot, make_default in self.__field_defaults__:
            if name in fields:
                setattr(self, name, fields.pop(name))
            else:
                setattr(self, slot, make_default())
        if fields:
            unknown, known = ", ".join(sorted(fields)), ", ".join(self.__field_names__)
            raise TypeError(f"{self.__msgtype__} has no field {unknown}; its fields are {known}")

    @classmethod
    def get_fields_and_field_types(cls) -> dict[str, str]:
        """Return a copy of the mapping from field name to type, as rclpy writes types."""
        return dict(cls.__field_types__)

    def __repr__(self) -> str:
        package, kind, name = self.__msgtype__.split("/")
        values = ", ".join(f"{field}={getattr(self, field)!r}" for field in self.__field_names__)
        return f"{package}.{kind}.{name}({values})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, self.__class__):
            return NotImplemented
        return all(_equal(getattr(self, field), getattr(other, field)) for field in self.__field_names__)

    __hash__ = None  # type: ignore[assignment]


class Service:
    """Base of every generated service class; never instantiated, it only carries its two message classes."""

    __msgtype__: ClassVar[str]
    Request: ClassVar[type[Message]]
    Response: ClassVar[type[Message]]

    def __init__(self) -> None:
        raise NotImplementedError("service classes are not instantiated; use .Request() and .Response()")


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return bool(np.array_equal(left, right))
    return bool(left == right)


def message_class(type_name: str) -> type[Message]:
    """Return the class of a message or of a service's half.

    Raises:
        UnknownInterfaceError: when the standalone runtime does not carry the type.
    """
    found = _classes.get(type_name)
    if found is None:
        with _lock:
            found = _classes.get(type_name) or _make_class(type_name)
            _classes[type_name] = found
    return found


def service_class(type_name: str) -> type[Service]:
    """Return the class of a service, with its `Request` and `Response`.

    Raises:
        UnknownInterfaceError: when the standalone runtime does not carry the type.
    """
    if type_name not in definitions.SERVICES:
        raise interfaces.UnknownInterfaceError(
            f"the standalone runtime has no service {type_name}; use a real ROS 2 installation for it"
        )
    with _lock:
        if type_name not in _services:
            package, kind, name = type_name.split("/")
            namespace = {
                "__module__": f"{package}.{kind}",
                "__msgtype__": type_name,
                "Request": message_class(f"{type_name}_Request"),
                "Response": message_class(f"{type_name}_Response"),
            }
            _services[type_name] = type(name, (Service,), namespace)
        return _services[type_name]


def _make_class(type_name: str) -> type[Message]:
    package, kind, name = type_name.split("/")
    fields = interfaces.fields(type_name)
    namespace: dict[str, Any] = {
        "__module__": f"{package}.{kind}",
        "__doc__": f"{type_name}: " + ", ".join(f"{field} ({field_type})" for field, field_type in fields),
        "__slots__": tuple(f"_{field}" for field, _ in fields),
        "__msgtype__": type_name,
        "__field_names__": tuple(field for field, _ in fields),
        "__field_types__": {field: str(field_type) for field, field_type in fields},
        "__field_defaults__": tuple(
            (field, f"_{field}", _default(field_type, interfaces.default(type_name, field)))
            for field, field_type in fields
        ),
        **interfaces.constants(type_name),
    }
    for field, field_type in fields:
        namespace[field] = _property(f"_{field}", _check(type_name, field, field_type))
    return type(name, (Message,), namespace)


def _property(slot: str, check: Check) -> property:
    def assign(message: Message, value: Any) -> None:
        setattr(message, slot, check(value))

    return property(attrgetter(slot), assign)


def _default(field_type: FieldType, stated: bool | int | float | str | None) -> Callable[[], Any]:
    base = field_type.base
    element: Callable[[], Any]
    if field_type.is_message:
        element = message_class(base)
    else:
        zero: Any = {"string": "", "bool": False, "byte": b"\x00", "float32": 0.0, "float64": 0.0}.get(base, 0)
        value = zero if stated is None else stated

        def element() -> Any:
            return value

    if field_type.sequence is not None:
        code = TYPECODES.get(base)
        return list if code is None else lambda: array.array(code)
    if field_type.array is not None:
        length = field_type.array
        if base in TYPECODES:
            return lambda: np.zeros(length, TYPECODES[base])
        return lambda: [element() for _ in range(length)]
    return element


def _check(type_name: str, field: str, field_type: FieldType) -> Check:
    where = f"{type_name}.{field}"
    element = _element_check(where, field_type)
    if field_type.array is not None:
        length = field_type.array
        if field_type.base in TYPECODES:
            return _fixed_array_check(where, np.dtype(TYPECODES[field_type.base]), length)
        return _list_check(where, element, length, length)
    if field_type.sequence is not None:
        bound = field_type.sequence or None
        if field_type.base in TYPECODES:
            return _number_sequence_check(where, TYPECODES[field_type.base], bound)
        return _list_check(where, element, 0, bound)
    return element


def _element_check(where: str, field_type: FieldType) -> Check:
    base = field_type.base
    expected: type
    if field_type.is_message:
        expected = message_class(base)
    elif base == "byte":
        return _byte_check(where)
    elif base in ("float32", "float64"):
        return _float_check(where, _FLOAT32_MAX if base == "float32" else math.inf)
    elif base in ("string", "bool"):
        expected = {"string": str, "bool": bool}[base]
        if field_type.string_bound:
            return _bounded_string_check(where, field_type.string_bound)
    else:
        bits = 8 * interfaces.PRIMITIVE_BYTES[base]
        signed = base.startswith("int")
        return _integer_check(where, -(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1)

    def check(value: Any) -> Any:
        if not isinstance(value, expected):
            raise AssertionError(f"{where} must be of type {expected.__name__}, not {value!r:.80}")
        return value

    return check


def _byte_check(where: str) -> Check:
    def check(value: Any) -> bytes:
        if not isinstance(value, (bytes, bytearray)) or len(value) != 1:
            raise AssertionError(f"{where} must be bytes of length 1, not {value!r:.80}")
        return bytes(value)

    return check


def _float_check(where: str, limit: float) -> Check:
    def check(value: Any) -> float:
        if not isinstance(value, float):
            raise AssertionError(f"{where} must be of type float, not {value!r:.80}")
        if not (-limit <= value <= limit or math.isinf(value) or math.isnan(value)):
            raise AssertionError(f"{where} must be within float32's range, not {value!r}")
        return value

    return check


def _bounded_string_check(where: str, bound: int) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value.encode()) > bound:
            raise AssertionError(f"{where} must be a str of at most {bound} bytes, not {value!r:.80}")
        return value

    return check


def _integer_check(where: str, low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if not isinstance(value, int):
            raise AssertionError(f"{where} must be of type int, not {value!r:.80}")
        if not low <= value <= high:
            raise AssertionError(f"{where} must be between {low} and {high}, not {value}")
        return value

    return check


def _fixed_array_check(where: str, dtype: np.dtype[Any], length: int) -> Check:
    def check(value: Any) -> np.ndarray[Any, Any]:
        if isinstance(value, np.ndarray):
            if value.dtype != dtype or value.shape != (length,):
                raise AssertionError(
                    f"{where} must be a numpy array of {dtype} of shape ({length},), not {value.dtype} {value.shape}"
                )
            return value
        if isinstance(value, (str, bytes)) or not isinstance(value, Collection) or len(value) != length:
            raise AssertionError(f"{where} must hold {length} values of {dtype}, not {value!r:.80}")
        try:
            return np.array(list(value), dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise AssertionError(f"{where} must hold {length} values of {dtype}: {error}") from error

    return check


def _number_sequence_check(where: str, code: str, bound: int | None) -> Check:
    def check(value: Any) -> array.array[Any]:
        # An array of the right type is kept as it is: an image's data is not copied on assignment.
        result = value if isinstance(value, array.array) and value.typecode == code else _to_array(where, code, value)
        if bound is not None and len(result) > bound:
            raise AssertionError(f"{where} must hold at most {bound} values, not {len(result)}")
        return result

    return check


def _to_array(where: str, code: str, value: Any) -> array.array[Any]:
    if isinstance(value, str):
        raise AssertionError(f"{where} must be a sequence of numbers, not {value!r:.80}")
    result: array.array[Any] = array.array(code)
    if isinstance(value, np.ndarray):
        if value.dtype == np.dtype(code):
            # One copy when the data is contiguous; a strided view has to be gathered first.
            result.frombytes(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
            return result
        value = value.reshape(-1).tolist()
    elif isinstance(value, (bytes, bytearray, memoryview)) and code == "B" and memoryview(value).itemsize == 1:
        view = memoryview(value)
        result.frombytes(view.cast("B") if view.c_contiguous and view.nbytes else view.tobytes())
        return result
    try:
        result.extend(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise AssertionError(f"{where} must be a sequence of numbers of type {code!r}: {error}") from error
    return result


def _list_check(where: str, element: Check, least: int, most: int | None) -> Check:
    def check(value: Any) -> list[Any]:
        if isinstance(value, (str, bytes)) or not isinstance(value, Collection):
            raise AssertionError(f"{where} must be a list, not {value!r:.80}")
        if len(value) < least or (most is not None and len(value) > most):
            raise AssertionError(f"{where} must hold {least} to {most} values, not {len(value)}")
        for item in value:
            element(item)
        return value if isinstance(value, list) else list(value)

    return check
