"""Small recordings to damage, with their messages."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from zlib import crc32

import lz4.frame

from multi_dnn_ros.bags import BagMessage, BagReader, BagWriter
from multi_dnn_ros.bags.decompression import zstd

STRING = "std_msgs/msg/String"
SECOND = 1_000_000_000


def cdr(text: str) -> bytes:
    """A std_msgs/String in CDR, encoded by hand."""
    data = text.encode() + b"\0"
    return b"\x00\x01\x00\x00" + len(data).to_bytes(4, "little") + data


def messages(count: int, size: int, seed: int = 1) -> list[BagMessage]:
    """Alternating messages on /a and /b of `size` letters that do not compress well."""
    rng = random.Random(seed)
    return [
        BagMessage("/" + "ab"[index % 2], STRING, index * SECOND, cdr(rng.randbytes(size // 2).hex()))
        for index in range(count)
    ]


def write_bag(path: Path, written: list[BagMessage], storage: str) -> Path:
    """Write a complete recording; return its storage file."""
    with BagWriter(path, storage) as writer:
        for topic in ("/a", "/b"):
            writer.add_topic(topic, STRING)
        for message in written:
            writer.write(message.topic, message.stamp_ns, message.data)
    (file,) = (file for file in path.iterdir() if file.suffix in (".mcap", ".db3"))
    return file


def _text(value: str) -> bytes:
    return struct.pack("<I", len(value)) + value.encode()


def record(opcode: int, body: bytes) -> bytes:
    return struct.pack("<BQ", opcode, len(body)) + body


def plain_mcap(
    written: list[BagMessage], chunk: int = 0, *, checksums: bool = True, compression: str = ""
) -> tuple[bytes, list[int]]:
    """An MCAP file without a summary, and the offset of the end of each message's record (if not compressed).

    chunk: number of messages per chunk; 0: no chunks, as with rosbag2's preset `fastwrite`.
    """
    data = bytearray(b"\x89MCAP0\r\n" + record(1, _text("ros2") + _text("test")))
    data += record(3, struct.pack("<H", 1) + _text(STRING) + _text("ros2msg") + _text("string data"))
    for number, topic in enumerate(("/a", "/b")):
        data += record(4, struct.pack("<HH", number, 1) + _text(topic) + _text("cdr") + struct.pack("<I", 0))
    bodies = [
        record(5, struct.pack("<HIQQ", "ab".index(x.topic[1]), index, x.stamp_ns, x.stamp_ns) + x.data)
        for index, x in enumerate(written)
    ]
    ends = []
    for first in range(0, len(bodies), chunk or len(bodies)):
        part = bodies[first : first + (chunk or len(bodies))]
        content = b"".join(part)
        if chunk:
            head = struct.pack("<QQQI", 0, 1, len(content), crc32(content) if checksums else 0)
            packed = {"": bytes, "zstd": zstd.compress, "lz4": lz4.frame.compress}[compression](content)
            head += _text(compression) + struct.pack("<Q", len(packed))
            data += record(6, head + packed)
        else:
            data += content
        end = len(data)
        for body in reversed(part):
            ends.append(end)
            end -= len(body)
        if chunk:
            times = struct.pack("<QQ", 0, 0) * len(part)
            data += record(7, struct.pack("<HI", 0, len(times)) + times)
    data += record(15, bytes(4)) + record(2, bytes(20)) + b"\x89MCAP0\r\n"
    return bytes(data), sorted(ends)


def with_summary(data: bytes, written: list[BagMessage]) -> bytes:
    """A file of :func:`plain_mcap` with a summary whose chunk indexes refer to no message indexes."""
    footer = record(2, bytes(20)) + b"\x89MCAP0\r\n"
    assert data.endswith(footer)
    data = data[: -len(footer)]
    summary, chunks, at = b"", 0, 8
    while at < len(data):
        opcode, length = struct.unpack_from("<BQ", data, at)
        body = data[at + 9 : at + 9 + length]
        if opcode in (3, 4):  # schemas and channels again
            summary += record(opcode, body)
        elif opcode == 6:
            (size,) = struct.unpack_from("<Q", body, 16)
            index = struct.pack("<QQQQ", written[0].stamp_ns, written[-1].stamp_ns, at, 9 + length)
            index += struct.pack("<IQ", 0, 0) + _text("") + struct.pack("<QQ", size, size)
            summary += record(8, index)
            chunks += 1
        at += 9 + length
    times = [message.stamp_ns for message in written]
    counts = [sum(message.topic == topic for message in written) for topic in ("/a", "/b")]
    statistics = struct.pack("<QHIIIIQQ", len(written), 1, 2, 0, 0, chunks, min(times), max(times))
    statistics += struct.pack("<IHQHQ", 20, 0, counts[0], 1, counts[1])
    footer = record(2, struct.pack("<QQI", len(data), 0, 0)) + b"\x89MCAP0\r\n"
    return data + summary + record(11, statistics) + footer


def read(path: Path) -> tuple[list[BagMessage], list[str]]:
    """Return the messages of a recording, and its damage."""
    with BagReader(path) as bag:
        found = list(bag.messages())
        assert sum(topic.count for topic in bag.topics.values()) >= len(found)
        return found, list(bag.damage)
