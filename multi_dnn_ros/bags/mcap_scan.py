"""Reading an MCAP file from front to back without its index: what a recorder that was killed leaves behind.

A recorder writes the index last, so a recording that ended with the power has none and the rosbags reader refuses it.
The records before the cut are whole and are read here. Layout: https://mcap.dev/spec (records of a one-byte opcode and
a 64-bit little-endian length; chunks hold further records, compressed).
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

from multi_dnn_ros.bags.inflation import DECOMPRESSION_ERRORS, MAX_CHUNK_BYTES, TooLargeError, inflate_chunk

MAGIC = b"\x89MCAP0\r\n"
_SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _DATA_END = 0x03, 0x04, 0x05, 0x06, 0x0F


class McapDamage(ValueError):
    """The file ends, or stops making sense, before its data section does; the message says where and why."""


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


def scan_mcap(path: Path) -> Iterator[McapMessage]:
    """Every message in the order of the file, chunk by chunk (sorted by time within a chunk).

    Raises McapDamage at the first record that is cut short or cannot be read, after everything before it was yielded.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise McapDamage("not an MCAP file: wrong magic bytes")
        schemas: dict[int, str] = {}
        channels: dict[int, McapChannel] = {}
        while True:
            offset = file.tell()
            opcode, body = _next_record(file, offset)
            if opcode == _DATA_END:
                return
            try:
                if opcode == _CHUNK:
                    records = io.BytesIO(_decompress(body))
                    messages = []
                    while records.tell() < records.getbuffer().nbytes:
                        message = _take(*_next_record(records, offset), schemas, channels)
                        if message is not None:
                            messages.append(message)
                    yield from sorted(messages, key=lambda message: message.stamp_ns)
                else:
                    message = _take(opcode, body, schemas, channels)
                    if message is not None:
                        yield message
            except (struct.error, KeyError, UnicodeDecodeError) as error:
                raise McapDamage(f"unreadable record at byte {offset}: {error!r}") from error


def _next_record(file: BinaryIO, offset: int) -> tuple[int, bytes]:
    head = file.read(9)
    if len(head) < 9:
        raise McapDamage(f"cut short at byte {offset}: no end of data was written")
    opcode, length = struct.unpack("<BQ", head)
    if length > MAX_CHUNK_BYTES:
        raise McapDamage(f"record at byte {offset} claims {length} bytes")
    body = file.read(length)
    if len(body) < length:
        raise McapDamage(f"cut short at byte {offset}: a record of {length} bytes has {len(body)}")
    return opcode, body


def _take(opcode: int, body: bytes, schemas: dict[int, str], channels: dict[int, McapChannel]) -> McapMessage | None:
    if opcode == _SCHEMA:
        (number,) = struct.unpack_from("<H", body)
        schemas[number], _ = _string(body, 2)
    elif opcode == _CHANNEL:
        number, schema = struct.unpack_from("<HH", body)
        topic, at = _string(body, 4)
        encoding, _ = _string(body, at)
        channels[number] = McapChannel(topic, schemas.get(schema, ""), encoding)
    elif opcode == _MESSAGE:
        number, _, log_time, _ = struct.unpack_from("<HIQQ", body)
        return McapMessage(channels[number], log_time, body[22:])
    return None


def _string(body: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<I", body, at)
    end = at + 4 + length
    return body[at + 4 : end].decode(), end


def _decompress(body: bytes) -> bytes:
    _, _, size, checksum = struct.unpack_from("<QQQI", body)
    compression, at = _string(body, 28)
    (length,) = struct.unpack_from("<Q", body, at)
    packed = body[at + 8 : at + 8 + length]
    try:
        data = inflate_chunk(packed, size, compression)
    except (TooLargeError, *DECOMPRESSION_ERRORS) as error:
        raise McapDamage(f"chunk cannot be decompressed: {error}") from error
    if len(data) != size or (checksum and crc32(data) != checksum):
        raise McapDamage(f"chunk of {size} bytes has {len(data)}, or a wrong checksum")
    return data
