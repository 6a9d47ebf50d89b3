"""The registry of interface types: which messages and services exist, their fields, constants and type hashes.

Definitions come from the Jazzy type store of `rosbags` and from `definitions`. Type names are written as ROS writes
them, `package/msg/Name`, and `package/srv/Name_Request` for the two halves of a service.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

from rosbags.interfaces import Nodetype
from rosbags.typesys import Stores, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from multi_dnn_ros.standalone import definitions

# The IDL compiler gives a message without fields this one, one byte on the wire and invisible in Python.
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

# Names that `get_fields_and_field_types` uses where they differ from the .msg language.
_IDL_NAMES: Final = {"bool": "boolean", "byte": "octet", "char": "uint8", "float32": "float", "float64": "double"}


class UnknownInterfaceError(ImportError):
    """A message or service that the standalone runtime does not carry."""


@dataclass(frozen=True)
class FieldType:
    """Type of a field: a primitive, a string or a message, alone or as array or sequence.

    `base` is a primitive's name, "string" or a message's type name. `array` is the length of a fixed array. `sequence`
    is the bound of a sequence, 0 when unbounded. At most one of the two is set. `string_bound` is 0 when unbounded.
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
        """Return the type as `get_fields_and_field_types` of rclpy writes it."""
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
    # ROS 2 hashes a `char` of the .msg language as uint8; rosbags hashes it as IDL's char.
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
        # The parser knows messages only, so a service's half is parsed under a message's name.
        (parsed,) = get_types_from_msg(text, name.replace("/srv/", "/msg/")).values()
        extra[name] = parsed
    store.register(extra)
    for constants_and_fields in store.fielddefs.values():
        fields = constants_and_fields[1]
        fields[:] = [(name, _without_char(description)) for name, description in fields]
    return store


def exists(type_name: str) -> bool:
    """Return whether a message, or a half of a service, of this name is carried."""
    return type_name in _store().fielddefs


def packages() -> set[str]:
    """Return the names of all packages that carry a message or a service."""
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
    """Return name and type of every field on the wire, an empty message's placeholder byte included."""
    return [(name, _field_type(description)) for name, description in _definition(type_name)[1]]


def fields(type_name: str) -> list[tuple[str, FieldType]]:
    """Return name and type of every field that a program sees."""
    return [(name, kind) for name, kind in wire_fields(type_name) if name != PLACEHOLDER]


def constants(type_name: str) -> dict[str, bool | int | float | str | bytes]:
    """Return the constants of a message, a `byte` as bytes of length 1 as rclpy has it."""
    return {name: bytes([value]) if kind == "byte" else value for name, kind, value in _definition(type_name)[0]}


def default(type_name: str, field: str) -> definitions.Default | None:
    """Return the default value that the .msg file states for a field, a tuple for several, None for none."""
    return definitions.DEFAULTS.get((type_name, field))


@functools.cache
def type_hash(type_name: str) -> str:
    """Return the RIHS01 hash (REP 2011) of a message or of a service's half."""
    _definition(type_name)
    return _store().hash_rihs01(type_name)
