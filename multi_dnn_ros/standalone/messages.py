"""Message and service classes as in rclpy, generated on first use from the interface registry.

A message class takes keyword arguments, applies the .msg file's defaults, and checks every assigned value
(AssertionError, which names the field; see :mod:`field_checks`). It stores sequences of numbers as `array.array`, fixed
arrays of numbers as numpy arrays, `byte` as bytes of length 1, and all else as plain Python values.
"""

from __future__ import annotations

import array
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from multi_dnn_ros.standalone import definitions, interfaces
from multi_dnn_ros.standalone.field_checks import TYPECODES, Check, make_check, make_conversion
from multi_dnn_ros.standalone.interfaces import FieldType
from multi_dnn_ros.standalone.missing import missing, refuse

_lock = threading.RLock()
_classes: dict[str, type[Message]] = {}
_services: dict[str, type[Service]] = {}


class _Interface(type):
    """Metaclass: accessing a missing name of a generated class raises an explicit error."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}", name=name, obj=cls)
        raise AttributeError(missing(f"{cls.__module__}.{cls.__name__}.{name}"), name=name, obj=cls)


class Message(metaclass=_Interface):
    """Base of all generated message classes; one property per field, stored in a slot with a leading underscore."""

    __slots__: tuple[str, ...] = ()

    __msgtype__: ClassVar[str]
    __field_names__: ClassVar[tuple[str, ...]] = ()
    __field_defaults__: ClassVar[tuple[tuple[str, str, Callable[[], Any]], ...]] = ()
    __field_types__: ClassVar[dict[str, str]] = {}
    __field_conversions__: ClassVar[dict[str, Check]] = {}

    if TYPE_CHECKING:  # the fields of a generated class

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, **fields: Any) -> None:
        """Set the given fields and the defaults of all others.

        Raises:
            AssertionError: for an unknown field, and for an invalid value.
            UnsupportedError: for `check_fields=False`; the checks are always on.
        """
        if fields and fields.pop("check_fields", True) is False:
            refuse(type(self).__name__, check_fields=False)
        for name, slot, make_default in self.__field_defaults__:
            if name in fields:
                value = fields.pop(name)
                convert = self.__field_conversions__.get(name)
                setattr(self, name, value if convert is None else convert(value))
            else:
                setattr(self, slot, make_default())
        if fields:
            unknown, known = ", ".join(sorted(fields)), ", ".join(self.__field_names__)
            raise AssertionError(
                f"Invalid arguments passed to constructor: {unknown}; the fields of {self.__msgtype__} are {known}"
            )

    @classmethod
    def get_fields_and_field_types(cls) -> dict[str, str]:
        """Return a copy of the mapping from field name to type, in rclpy's notation."""
        return dict(cls.__field_types__)

    def __repr__(self) -> str:
        package, kind, name = self.__msgtype__.split("/")
        values = ", ".join(f"{field}={_shown(getattr(self, field))}" for field in self.__field_names__)
        return f"{package}.{kind}.{name}({values})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, self.__class__):
            return NotImplemented
        return all(_equal(getattr(self, field), getattr(other, field)) for field in self.__field_names__)

    __hash__ = None  # type: ignore[assignment]


class Service(metaclass=_Interface):
    """Base of all generated service classes; never instantiated, it only holds its two message classes."""

    __msgtype__: ClassVar[str]
    Request: ClassVar[type[Message]]
    Response: ClassVar[type[Message]]

    def __init__(self) -> None:
        raise NotImplementedError("Service classes can not be instantiated; use .Request() and .Response()")


def _shown(value: Any) -> str:
    return repr(value.tolist()) if isinstance(value, array.array) else repr(value)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return bool(np.array_equal(left, right))
    return bool(left == right)


def message_class(type_name: str) -> type[Message]:
    """Return the class of a message, service request or service response.

    Raises:
        UnknownInterfaceError: if the standalone runtime does not have the type.
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
        UnknownInterfaceError: if the standalone runtime does not have the type.
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
    conversions: dict[str, Check] = {}
    for field, field_type in fields:
        namespace[field] = _property(f"_{field}", make_check(type_name, field, field_type, message_class))
        convert = make_conversion(type_name, field, field_type)
        if convert is not None:
            conversions[field] = convert
        if interfaces.default(type_name, field) is not None:
            namespace[f"{field.upper()}__DEFAULT"] = interfaces.default(type_name, field)
    namespace["__field_conversions__"] = conversions
    return type(name, (Message,), namespace)


def _property(slot: str, check: Check) -> property:
    def assign(message: Message, value: Any) -> None:
        setattr(message, slot, check(value))

    return property(attrgetter(slot), assign)


def _default(field_type: FieldType, declared: Any) -> Callable[[], Any]:
    """Return a function that makes a field's initial value: the .msg file's default, else zeros."""
    base = field_type.base
    code = TYPECODES.get(base)
    if field_type.sequence is not None:
        return (lambda: list(declared or ())) if code is None else lambda: array.array(code, declared or ())
    if field_type.is_message:
        cls = message_class(base)
        return cls if field_type.array is None else lambda: [cls() for _ in range(field_type.array or 0)]
    zero: Any = {"string": "", "bool": False, "byte": b"\x00", "float32": 0.0, "float64": 0.0}.get(base, 0)
    if field_type.array is None:
        value = zero if declared is None else declared
        return lambda: value
    values = [zero] * field_type.array if declared is None else list(declared)
    return (lambda: list(values)) if code is None else lambda: np.array(values, code)
