"""The registry of interface types: messages and services with their fields, constants and type hashes.

Definitions come from the Jazzy type store of `rosbags` and from `definitions`. Type names are in ROS notation,
`package/msg/Name`, and `package/srv/Name_Request` or `_Response` for services.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from multi_dnn_ros.standalone import definitions

# The IDL compiler adds this field to empty messages: one byte on the wire, not visible in Python.
PLACEHOLDER: Final = "structure_needs_at_least_one_member"

PRIMITIVE_BYTES: Final[dict[str, int]] = {
    "bool": 1,
    "byte": 1,
    "char": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float32": 4,
    "float64": 8,
}

# Type names in `get_fields_and_field_types` that differ from the .msg language.
_IDL_NAMES: Final = {"bool": "boolean", "byte": "octet", "char": "uint8", "float32": "float", "float64": "double"}


class UnknownInterfaceError(ImportError):
    """A message or service that the standalone runtime does not have."""


@dataclass(frozen=True)
class FieldType:
    """Type of a field: a primitive, a string or a message, single or as array or sequence.

    `base` is a primitive's name, "string" or a message type name. `array` is the length of a fixed array. `sequence` is
    the bound of a sequence, 0 if unbounded. At most one of the two is set. `string_bound` is 0 if unbounded.
    """

    base: str
    is_message: bool = False
    string_bound: int = 0
    array: int | None = None
    sequence: int | None = None

    @property
    def is_primitive(self) -> bool:
        """Whether the element is a number, a bool or a byte."""
        return self.base in PRIMITIVE_BYTES

    def __str__(self) -> str:
        """Return the type in the notation of rclpy's `get_fields_and_field_types`."""
        name = self.base.replace("/msg/", "/") if self.is_message else _IDL_NAMES.get(self.base, self.base)
        if self.string_bound:
            name = f"{name}<{self.string_bound}>"
        if self.array is not None:
            return f"{name}[{self.array}]"
        if self.sequence is not None:
            return f"sequence<{name}, {self.sequence}>" if self.sequence else f"sequence<{name}>"
        return name


def _field_type(description: Any) -> FieldType:
    kind, argument = description
    if kind == Nodetype.NAME:
        return FieldType(argument, is_message=True)
    if kind == Nodetype.BASE:
        name, bound = argument
        return FieldType(name, string_bound=bound)
    element, count = argument
    base = _field_type(element)
    length = {"array": count} if kind == Nodetype.ARRAY else {"sequence": count}
    return FieldType(base.base, base.is_message, base.string_bound, **length)


def _without_char(description: Any) -> Any:
    # ROS 2 hashes the .msg type `char` as uint8; rosbags as IDL's char.
    kind, argument = description
    if kind == Nodetype.BASE:
        return (kind, ("uint8", argument[1])) if argument[0] == "char" else description
    if kind == Nodetype.NAME:
        return description
    return (kind, (_without_char(argument[0]), argument[1]))


@functools.lru_cache(maxsize=1)
def _store() -> Typestore:
    store = get_typestore(Stores.ROS2_JAZZY)
    texts = dict(definitions.MESSAGES)
    for name, (request, response) in definitions.SERVICES.items():
        texts[f"{name}_Request"] = request or f"uint8 {PLACEHOLDER}"
        texts[f"{name}_Response"] = response or f"uint8 {PLACEHOLDER}"
    extra: dict[str, Any] = {}
    for name, text in texts.items():
        # The parser supports messages only, so requests and responses are parsed under a message name.
        (parsed,) = get_types_from_msg(text, name.replace("/srv/", "/msg/")).values()
        extra[name] = parsed
    store.register(extra)
    for constants_and_fields in store.fielddefs.values():
        fields = constants_and_fields[1]
        fields[:] = [(name, _without_char(description)) for name, description in fields]
    return store


def exists(type_name: str) -> bool:
    """Return whether a message, or a service request or response, of this name exists."""
    return type_name in _store().fielddefs


def packages() -> set[str]:
    """Return the names of all packages with messages or services."""
    return {name.split("/", 1)[0] for name in _store().fielddefs}


def names(package: str, kind: str) -> list[str]:
    """Return the sorted names of a package's messages (`kind` "msg") or services ("srv")."""
    if kind == "srv":
        found = definitions.SERVICES
        return sorted(name.split("/")[2] for name in found if name.startswith(f"{package}/srv/"))
    return sorted(name.split("/")[2] for name in _store().fielddefs if name.startswith(f"{package}/msg/"))


def _definition(type_name: str) -> Any:
    try:
        return _store().fielddefs[type_name]
    except KeyError:
        raise UnknownInterfaceError(
            f"the standalone runtime has no interface {type_name}; use a real ROS 2 installation for it"
        ) from None


def wire_fields(type_name: str) -> list[tuple[str, FieldType]]:
    """Return name and type of every field on the wire, including the placeholder byte of an empty message."""
    return [(name, _field_type(description)) for name, description in _definition(type_name)[1]]


def fields(type_name: str) -> list[tuple[str, FieldType]]:
    """Return name and type of every field visible to a program."""
    return [(name, kind) for name, kind in wire_fields(type_name) if name != PLACEHOLDER]


def constants(type_name: str) -> dict[str, bool | int | float | str | bytes]:
    """Return the constants of a message; a `byte` as bytes of length 1, as in rclpy."""
    return {name: bytes([value]) if kind == "byte" else value for name, kind, value in _definition(type_name)[0]}


def default(type_name: str, field: str) -> definitions.Default | None:
    """Return a field's default value from the .msg file, a tuple for arrays, None if there is none."""
    return definitions.DEFAULTS.get((type_name, field))


@functools.cache
def type_hash(type_name: str) -> str:
    """Return the RIHS01 hash (REP 2011) of a message or a service request or response."""
    _definition(type_name)
    return _store().hash_rihs01(type_name)
