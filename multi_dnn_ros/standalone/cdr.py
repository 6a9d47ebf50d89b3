"""CDR (XCDR1, plain) serialization of messages, as written by every ROS 2 middleware.

Each message type gets one writer and, per byte order, one reader, composed of closures. Adjacent numbers of equal size
share one `struct` call, and arrays are copied as a whole. A reader never trusts a length: claimed lengths are checked
against the buffer before anything is allocated. Hosts are little endian (x86_64, aarch64).

Source: OMG DDSI-RTPS 2.3, clause 10 (encapsulation), CORBA 3.0, chapter 15.3 (CDR).
"""

from __future__ import annotations

import array
import struct
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from multi_dnn_ros.standalone import interfaces
from multi_dnn_ros.standalone.field_checks import TYPECODES
from multi_dnn_ros.standalone.interfaces import PRIMITIVE_BYTES, FieldType
from multi_dnn_ros.standalone.messages import Message, message_class

HEADER_BYTES: Final = 4
_HEADER: Final = b"\x00\x01\x00\x00"  # little endian, the byte order of all writers here
_BYTE_ORDERS: Final = {b"\x00\x00": ">", b"\x00\x01": "<"}
_FORMATS: Final = {**TYPECODES, "bool": "?", "byte": "c"}
_PADDING: Final = b"\x00" * 8

MessageT = TypeVar("MessageT", bound=Message)
Write: TypeAlias = Callable[[bytearray, Any], None]
Read: TypeAlias = Callable[["Cursor"], Any]

_lock = threading.RLock()
_writers: dict[str, Write] = {}
_readers: dict[tuple[str, str], Read] = {}


class CdrError(ValueError):
    """Bytes are not a message of the expected type, or a message cannot be serialized; names type and field."""


class Cursor:
    """A position in a serialized payload; alignment counts from the payload's first byte.

    byte_views: sequences of bytes are read as views of the payload, without a copy.
    """

    __slots__ = ("buffer", "byte_views", "end", "position")

    def __init__(self, payload: memoryview, byte_views: bool = False) -> None:
        self.buffer = payload
        self.byte_views = byte_views
        self.position = 0
        self.end = len(payload)

    def take(self, size: int, alignment: int) -> int:
        """Skip padding, claim `size` bytes and return their offset."""
        start = self.position + (-self.position % alignment)
        if size > self.end - start:
            raise CdrError(f"needs {size} bytes, {max(self.end - start, 0)} are left")
        self.position = start + size
        return start


def serialize(message: Message, prefix: bytes = b"", into: type[bytearray] = bytearray) -> bytearray:
    """Return the message as little-endian CDR with the encapsulation header.

    Args:
        message: the message.
        prefix: raw bytes before the message, with a length that is a multiple of 8 (a service's header).
        into: class of the returned buffer.

    Raises:
        CdrError: if a field has a value that its type cannot represent.
    """
    buffer = into(_HEADER)
    buffer += prefix
    _writer(message.__msgtype__)(buffer, message)
    return buffer


def deserialize(
    data: bytes | bytearray | memoryview, cls: type[MessageT], skip: int = 0, *, byte_views: bool = False
) -> MessageT:
    """Return the message in `data`, CDR with its encapsulation header.

    Args:
        data: the serialized message.
        cls: its class.
        skip: number of bytes between the header and the message, a multiple of 8 (a service's header).
        byte_views: fields of type `uint8[]` become views of `data` instead of copies in an `array.array`.

    Raises:
        CdrError: if the data is truncated, claims a wrong length, or is not CDR.
    """
    view = memoryview(data).cast("B") if not isinstance(data, bytes) else memoryview(data)
    order = _BYTE_ORDERS.get(bytes(view[:2]))
    if len(view) < HEADER_BYTES or order is None:
        raise CdrError(
            f"{cls.__msgtype__}: not plain CDR, the data starts with {bytes(view[:4]).hex(' ') or 'nothing'}"
        )
    cursor = Cursor(view[HEADER_BYTES:], byte_views)
    cursor.take(skip, 1)
    message: MessageT = _reader(cls.__msgtype__, order)(cursor)
    return message


def serialize_message(message: Message) -> bytes:
    """Return the message as CDR bytes (rclpy.serialization)."""
    return bytes(serialize(message))


def deserialize_message(serialized_message: bytes, message_type: type[MessageT]) -> MessageT:
    """Return the message in the CDR bytes (rclpy.serialization)."""
    return deserialize(serialized_message, message_type)


# ---------------------------------------------------------------------------------------------------------- writing


def _writer(type_name: str) -> Write:
    write = _writers.get(type_name)
    if write is None:
        with _lock:
            write = _writers[type_name] = _message_writer(type_name)
    return write


def _runs(type_name: str) -> Iterator[list[tuple[str, FieldType]]]:
    """Yield the fields in order, with adjacent single primitives of equal size grouped."""

    def size_or_name(item: tuple[str, FieldType]) -> int | str:
        name, kind = item
        single = kind.is_primitive and kind.array is None and kind.sequence is None
        return PRIMITIVE_BYTES[kind.base] if single and name != interfaces.PLACEHOLDER else name

    for _, run in groupby(interfaces.wire_fields(type_name), key=size_or_name):
        yield list(run)


def _message_writer(type_name: str) -> Write:
    steps: list[tuple[str, Write]] = []
    for run in _runs(type_name):
        name, kind = run[0]
        if name == interfaces.PLACEHOLDER:
            steps.append((name, lambda buffer, message: buffer.append(0)))
        elif kind.is_primitive and kind.array is None and kind.sequence is None:
            steps.append((" or ".join(field for field, _ in run), _primitives_writer(run)))
        else:
            steps.append((name, _field_writer(attrgetter(f"_{name}"), _value_writer(kind))))

    def write(buffer: bytearray, message: Any) -> None:
        name = ""
        try:
            for name, step in steps:  # noqa: B007 (the name is for the error)
                step(buffer, message)
        except CdrError:
            raise
        except (struct.error, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CdrError(f"{type_name}.{name} cannot be written: {error}") from error

    return write


def _field_writer(get: Callable[[Any], Any], write: Write) -> Write:
    return lambda buffer, message: write(buffer, get(message))


def _primitives_writer(run: list[tuple[str, FieldType]]) -> Write:
    size = PRIMITIVE_BYTES[run[0][1].base]
    pack = struct.Struct("<" + "".join(_FORMATS[kind.base] for _, kind in run)).pack
    get = attrgetter(*(f"_{name}" for name, _ in run))
    if len(run) == 1:

        def write_one(buffer: bytearray, message: Any) -> None:
            buffer += _PADDING[: (HEADER_BYTES - len(buffer)) % size]
            buffer += pack(get(message))

        return write_one

    def write(buffer: bytearray, message: Any) -> None:
        buffer += _PADDING[: (HEADER_BYTES - len(buffer)) % size]
        buffer += pack(*get(message))

    return write


def _write_length(buffer: bytearray, length: int) -> None:
    buffer += _PADDING[: -len(buffer) % 4]
    buffer += length.to_bytes(4, "little")


def _write_string(buffer: bytearray, value: str) -> None:
    encoded = value.encode()
    _write_length(buffer, len(encoded) + 1)
    buffer += encoded
    buffer.append(0)


def _value_writer(kind: FieldType) -> Write:
    counted = kind.sequence is not None
    if kind.array is None and not counted:
        return _element_writer(kind)
    if kind.base in TYPECODES:
        size = PRIMITIVE_BYTES[kind.base]

        def write_numbers(buffer: bytearray, values: Any) -> None:
            if counted:
                _write_length(buffer, len(values))
            if len(values):
                buffer += _PADDING[: (HEADER_BYTES - len(buffer)) % size]
                buffer += memoryview(values).cast("B")  # one copy

        return write_numbers
    element = _element_writer(kind)
    length = kind.array

    def write_list(buffer: bytearray, values: Any) -> None:
        if counted:
            _write_length(buffer, len(values))
        elif len(values) != length:
            raise ValueError(f"must hold {length} values, holds {len(values)}")
        for value in values:
            element(buffer, value)

    return write_list


def _element_writer(kind: FieldType) -> Write:
    if kind.is_message:
        return _writer(kind.base)
    if kind.base == "string":
        return _write_string
    pack = struct.Struct(_FORMATS[kind.base]).pack  # only bool and byte come here, of size 1

    def write(buffer: bytearray, value: Any) -> None:
        buffer += pack(value)

    return write


# ---------------------------------------------------------------------------------------------------------- reading


def _reader(type_name: str, order: str) -> Read:
    read = _readers.get((type_name, order))
    if read is None:
        with _lock:
            read = _readers[type_name, order] = _message_reader(type_name, order)
    return read


def _message_reader(type_name: str, order: str) -> Read:
    cls = message_class(type_name)
    new = cls.__new__
    steps: list[tuple[str, Callable[[Any, Cursor], None]]] = []
    for run in _runs(type_name):
        name, kind = run[0]
        if name == interfaces.PLACEHOLDER:
            steps.append((name, lambda message, cursor: _skip(cursor, 1)))
        elif kind.is_primitive and kind.array is None and kind.sequence is None:
            slots = [getattr(cls, f"_{field}").__set__ for field, _ in run]
            steps.append((" or ".join(field for field, _ in run), _primitives_reader(run, slots, order)))
        else:
            steps.append((name, _field_reader(getattr(cls, f"_{name}").__set__, _value_reader(kind, order))))

    def read(cursor: Cursor) -> Message:
        message = new(cls)
        name = ""
        try:
            for name, step in steps:  # noqa: B007 (the name is for the error)
                step(message, cursor)
        except _LocatedError:
            raise
        except (CdrError, struct.error, ValueError) as error:
            raise _LocatedError(f"{type_name}.{name}: {error}") from error
        return message

    return read


class _LocatedError(CdrError):
    """An error whose message already names type and field."""


def _skip(cursor: Cursor, size: int) -> None:
    cursor.take(size, 1)


def _field_reader(assign: Callable[[Any, Any], None], read: Read) -> Callable[[Any, Cursor], None]:
    return lambda message, cursor: assign(message, read(cursor))


def _primitives_reader(
    run: list[tuple[str, FieldType]], assigns: list[Callable[[Any, Any], None]], order: str
) -> Callable[[Any, Cursor], None]:
    layout = struct.Struct(order + "".join(_FORMATS[kind.base] for _, kind in run))
    size = PRIMITIVE_BYTES[run[0][1].base]
    unpack, total = layout.unpack_from, layout.size

    def read(message: Any, cursor: Cursor) -> None:
        for assign, value in zip(assigns, unpack(cursor.buffer, cursor.take(total, size)), strict=True):
            assign(message, value)

    return read


def _read_length(cursor: Cursor, order: str) -> int:
    start = cursor.take(4, 4)
    return int.from_bytes(cursor.buffer[start : start + 4], "little" if order == "<" else "big")


def _string_reader(order: str, bound: int) -> Read:
    def read(cursor: Cursor) -> str:
        length = _read_length(cursor, order)
        if not length:
            return ""  # some writers omit even the terminating zero
        start = cursor.take(length, 1)
        if bound and length - 1 > bound:
            raise CdrError(f"holds {length - 1} bytes, at most {bound} are allowed")
        return str(cursor.buffer[start : start + length - 1], "utf-8", "replace")  # as rosidl: C++ writers do not check

    return read


def _value_reader(kind: FieldType, order: str) -> Read:
    if kind.array is None and kind.sequence is None:
        return _element_reader(kind, order)
    if kind.base in TYPECODES:
        return _numbers_reader(kind, order)
    element = _element_reader(kind, order)
    min_bytes = _min_bytes(kind)
    fixed, bound = kind.array, kind.sequence

    def read(cursor: Cursor) -> list[Any]:
        length = _read_length(cursor, order) if fixed is None else fixed
        _check_length(cursor, length, bound, min_bytes)
        return [element(cursor) for _ in range(length)]

    return read


def _check_length(cursor: Cursor, length: int, bound: int | None, element_bytes: int) -> None:
    left = cursor.end - cursor.position
    if length * element_bytes > left:
        raise CdrError(f"claims {length} elements, {left} bytes are left")
    if bound and length > bound:
        raise CdrError(f"claims {length} elements, at most {bound} are allowed")


def _numbers_reader(kind: FieldType, order: str) -> Read:
    code, size, bound = TYPECODES[kind.base], PRIMITIVE_BYTES[kind.base], kind.sequence
    dtype, count, is_bytes = np.dtype(order + code), kind.array or 0, code == "B"

    def read_fixed(cursor: Cursor) -> np.ndarray[Any, Any]:
        start = cursor.take(count * size, size)
        return np.frombuffer(cursor.buffer, dtype, count, start).astype(code)

    def read_sequence(cursor: Cursor) -> array.array[Any] | memoryview:
        length = _read_length(cursor, order)
        _check_length(cursor, length, bound, size)
        if is_bytes and cursor.byte_views:
            start = cursor.take(length, 1)
            return cursor.buffer[start : start + length]
        values: array.array[Any] = array.array(code)
        if length:
            start = cursor.take(length * size, size)
            values.frombytes(cursor.buffer[start : start + length * size])
            if order == ">":
                values.byteswap()
        return values

    return read_sequence if kind.array is None else read_fixed


def _min_bytes(kind: FieldType) -> int:
    """Return the minimum size of one element on the wire, without alignment."""
    if kind.is_message:
        total = 0
        for _, field in interfaces.wire_fields(kind.base):
            if field.sequence is not None:
                total += 4
            else:
                total += _min_bytes(field) * (1 if field.array is None else field.array)
        return total
    return 4 if kind.base == "string" else PRIMITIVE_BYTES[kind.base]


def _element_reader(kind: FieldType, order: str) -> Read:
    if kind.is_message:
        return _reader(kind.base, order)
    if kind.base == "string":
        return _string_reader(order, kind.string_bound)
    unpack = struct.Struct(_FORMATS[kind.base]).unpack_from  # only bool and byte come here, of size 1

    def read(cursor: Cursor) -> Any:
        return unpack(cursor.buffer, cursor.take(1, 1))[0]

    return read
