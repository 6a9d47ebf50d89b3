"""The records of an MCAP file: a one-byte opcode, a 64-bit little-endian length, a body (https://mcap.dev/spec).

Each parser raises McapDamage for a body that does not have the layout of its record.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, NamedTuple
from zlib import crc32

from multi_dnn_ros.bags.decompression import DECOMPRESSION_ERRORS, TooLargeError, decompress_chunk, decompress_prefix

MAGIC = b"\x89MCAP0\r\n"
HEADER, FOOTER, SCHEMA, CHANNEL, MESSAGE, CHUNK, MESSAGE_INDEX, DATA_END = 1, 2, 3, 4, 5, 6, 7, 15
PREFIX_BYTES = 9  # opcode and length
#: Opcode, length, summary_start, summary_offset_start, summary_crc; then the magic bytes end the file.
_FOOTER_BYTES = PREFIX_BYTES + 20
_INDEX_ENTRY_BYTES = 16


class McapDamage(ValueError):
    """Invalid bytes; the message says what is wrong."""


class McapChannel(NamedTuple):
    """One topic of the file: its name, message type (`sensor_msgs/msg/Image`) and encoding (`cdr`)."""

    topic: str
    msgtype: str
    encoding: str


class McapMessage(NamedTuple):
    """One message: its channel, log time in nanoseconds and CDR bytes."""

    channel: McapChannel
    stamp_ns: int
    data: bytes


class Chunk(NamedTuple):
    """The header of a chunk, and its compressed records as far as the file has them.

    decompressed_bytes, checksum: of the decompressed records; checksum 0: none. stored_bytes: size of the compressed
    records according to the header. stored: these records, fewer bytes than stored_bytes if the chunk is truncated.
    """

    decompressed_bytes: int
    checksum: int
    compression: str
    stored_bytes: int
    stored: bytes

    def records(self) -> bytes:
        """The records, decompressed and verified. Raises McapDamage."""
        try:
            data = decompress_chunk(self.stored, self.decompressed_bytes, self.compression)
        except (TooLargeError, *DECOMPRESSION_ERRORS) as error:
            raise McapDamage(str(error)) from error
        if len(data) != self.decompressed_bytes:
            raise McapDamage(f"holds {len(data)} bytes instead of {self.decompressed_bytes}")
        if self.checksum and crc32(data) != self.checksum:
            raise McapDamage(f"checksum is {crc32(data):08x} instead of {self.checksum:08x}")
        return data

    def first_records(self) -> bytes:
        """The records of a truncated chunk that can be decompressed; they cannot be verified."""
        try:
            return decompress_prefix(self.stored, self.decompressed_bytes, self.compression)
        except (TooLargeError, *DECOMPRESSION_ERRORS):
            return b""


class Definitions:
    """The schemas and channels read so far, by number."""

    def __init__(self) -> None:
        self._schemas: dict[int, str] = {}
        self.channels: dict[int, McapChannel] = {}

    def add(self, opcode: int, body: bytes) -> None:
        """Store the definition of a schema or channel record; ignore other records."""
        if opcode == SCHEMA:
            number, name = schema(body)
            self._schemas[number] = name
        elif opcode == CHANNEL:
            number, schema_number, topic, encoding = channel(body)
            self.channels[number] = McapChannel(topic, self._schemas.get(schema_number, ""), encoding)

    def message(self, body: bytes) -> McapMessage:
        """The message in the body of a message record. Raises McapDamage, also if its channel is not defined."""
        number, _, stamp_ns, _ = _unpack("<HIQQ", body)
        if number not in self.channels:
            raise McapDamage(f"message on channel {number}, which is not defined")
        return McapMessage(self.channels[number], stamp_ns, body[22:])


def schema(body: bytes) -> tuple[int, str]:
    """Number and message type of a schema record."""
    (number,) = _unpack("<H", body)
    name, at = _string(body, 2)
    _, at = _string(body, at)
    (length,) = _unpack("<I", body, at)
    _check_length(body, at + 4 + length)
    return number, name


def channel(body: bytes) -> tuple[int, int, str, str]:
    """Channel number, schema number, topic and encoding of a channel record."""
    number, schema_number = _unpack("<HH", body)
    topic, at = _string(body, 4)
    encoding, at = _string(body, at)
    (length,) = _unpack("<I", body, at)
    _check_length(body, at + 4 + length)
    return number, schema_number, topic, encoding


def chunk(body: bytes) -> Chunk:
    """The chunk in the body of a chunk record, which may be truncated."""
    _, _, size, checksum = _unpack("<QQQI", body)
    compression, at = _string(body, 28)
    (length,) = _unpack("<Q", body, at)
    return Chunk(size, checksum, compression, length, body[at + 8 : at + 8 + length])


def index_count(body: bytes) -> int:
    """Number of messages that the body of a message index record lists."""
    _, length = _unpack("<HI", body)
    _check_length(body, 6 + length)
    return int(length) // _INDEX_ENTRY_BYTES


def read_summary(file: BinaryIO, size: int) -> Definitions | None:
    """The schemas and channels in the summary at the end of the file; None if there is no summary.

    size: size of the file in bytes. Raises McapDamage if the end of the file is missing or the summary is damaged.
    """
    end = size - len(MAGIC) - _FOOTER_BYTES
    file.seek(max(0, end))
    footer = file.read(_FOOTER_BYTES + len(MAGIC))
    if end < 0 or not footer.endswith(MAGIC) or footer[:PREFIX_BYTES] != struct.pack("<BQ", FOOTER, 20):
        raise McapDamage("truncated: the end of the file is missing")
    start, _, checksum = struct.unpack_from("<QQI", footer, PREFIX_BYTES)
    if not start:
        return None
    if start > end:
        raise McapDamage(f"summary at byte {start}, after the end of the file")
    file.seek(start)
    summary = file.read(end - start)
    if checksum and crc32(summary + footer[: PREFIX_BYTES + 16]) != checksum:
        raise McapDamage(f"summary at byte {start}: wrong checksum")
    definitions = Definitions()
    at = 0
    while at < len(summary):
        opcode, length = _unpack("<BQ", summary, at)
        definitions.add(opcode, summary[at + PREFIX_BYTES : at + PREFIX_BYTES + length])
        at += PREFIX_BYTES + length
    return definitions


def _unpack(layout: str, body: bytes, at: int = 0) -> tuple[int, ...]:
    try:
        return struct.unpack_from(layout, body, at)
    except struct.error as error:
        raise McapDamage(str(error)) from error


def _string(body: bytes, at: int) -> tuple[str, int]:
    (length,) = _unpack("<I", body, at)
    end = at + 4 + length
    if end > len(body):
        raise McapDamage(f"text of {length} bytes in a record of {len(body)}")
    try:
        return body[at + 4 : end].decode(), end
    except UnicodeDecodeError as error:
        raise McapDamage(str(error)) from error


def _check_length(body: bytes, length: int) -> None:
    if len(body) != length:
        raise McapDamage(f"record of {len(body)} bytes whose fields claim {length}")
