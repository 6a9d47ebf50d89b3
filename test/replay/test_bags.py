"""Recordings written by rosbags and read by us: intact, cut short, damaged in the middle, without index or metadata."""

from __future__ import annotations

import os
import random
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType, IndexType, Writer
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_typestore

from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.replay.bag_writer import BagWriter, canonical, definition
from multi_dnn_ros.replay.storage_files import BagError, BagMessage

STRING = "std_msgs/msg/String"
SECOND = 1_000_000_000
STORAGES = pytest.mark.parametrize("storage", ["mcap", "sqlite3"])


def cdr(text: str) -> bytes:
    """A std_msgs/String in CDR, encoded by hand."""
    data = text.encode() + b"\0"
    return b"\x00\x01\x00\x00" + len(data).to_bytes(4, "little") + data


def messages(count: int, size: int = 40) -> list[BagMessage]:
    """Alternating messages on /a and /b of `size` letters that do not compress well."""
    rng = random.Random(1)
    return [
        BagMessage("/" + "ab"[index % 2], STRING, index * SECOND, cdr(rng.randbytes(size // 2).hex()))
        for index in range(count)
    ]


def write_bag(path: Path, written: list[BagMessage], storage: str) -> Path:
    """A complete recording; returns its storage file."""
    with BagWriter(path, storage) as writer:
        for topic in ("/a", "/b"):
            writer.add_topic(topic, STRING)
        for message in written:
            writer.write(message.topic, message.stamp_ns, message.data)
    (file,) = (file for file in path.iterdir() if file.suffix in (".mcap", ".db3"))
    return file


def write_mcap(path: Path, written: list[BagMessage], *, index: bool = True, chunk: int = 200) -> list[int]:
    """An uncompressed .mcap file. Returns its size after each message, once that is no longer buffered."""
    options = {} if index else {"index_types": IndexType.NONE, "use_statistics": False, "repeat_channels": False}
    with path.open("wb") as file:
        writer = Writer(file, chunk_size=chunk, compression=CompressionType.NONE, **options)  # type: ignore[arg-type]
        writer.start(profile="ros2", library="test")
        schema = writer.register_schema(STRING, "ros2msg", b"string data")
        channels = {topic: writer.register_channel(topic, "cdr", schema) for topic in ("/a", "/b")}
        ends = []
        for message in written:
            writer.add_message(channels[message.topic], message.stamp_ns, message.data, message.stamp_ns)
            ends.append(file.tell())
        writer.finish()
    return ends


def read(path: Path) -> tuple[list[BagMessage], list[str]]:
    """The messages of a recording, and its damage."""
    with BagReader(path) as bag:
        found = list(bag.messages())
        assert sum(topic.count for topic in bag.topics.values()) >= len(found)
        return found, bag.damage


@STORAGES
def test_what_was_written_is_read_also_by_rosbags(tmp_path: Path, storage: str) -> None:
    written = messages(6)
    file = write_bag(tmp_path / "bag", written, storage)
    for path in (tmp_path / "bag", file):
        assert read(path) == (written, [])
    with BagReader(tmp_path / "bag") as bag:
        assert {name: (topic.msgtype, topic.count) for name, topic in bag.topics.items()} == {
            "/a": (STRING, 3), "/b": (STRING, 3)
        }  # fmt: skip
        assert list(bag.messages(["/b"])) == written[1::2]
        with pytest.raises(BagError, match=r"no topic /c; it has /a \(std_msgs/msg/String\), /b"):
            list(bag.messages(["/c"]))
    with Reader(tmp_path / "bag") as reader:
        assert [(c.topic, stamp, bytes(data)) for c, stamp, data in reader.messages()] == [
            (message.topic, message.stamp_ns, message.data) for message in written
        ]


@pytest.mark.parametrize("msgtype", ["sensor_msgs/msg/Image", "sensor_msgs/msg/PointCloud2", STRING])
def test_derived_definition_equals_the_published_one(msgtype: str) -> None:
    assert definition(msgtype)[1] == get_typestore(Stores.ROS2_JAZZY).hash_rihs01(msgtype)


def test_bytes_between_the_fields_of_a_message_are_zero() -> None:
    header = b"\x00\x01\x00\x00" + bytes(8) + b"\x02\x00\x00\x00a\x00"
    assert canonical("std_msgs/msg/Header", header) == header
    image = header + b"\xff\xff" + bytes(8) + b"\x01\x00\x00\x00\x00" + b"\x00" + b"\xff\xff" + bytes(8)
    assert b"\xff" not in canonical("sensor_msgs/msg/Image", image)


def test_the_files_of_a_killed_recorder_are_read_in_recorded_order(tmp_path: Path) -> None:
    """Without metadata.yaml; the last file has no index and ends in a message."""
    written = messages(33)
    folder = tmp_path / "bag"
    folder.mkdir()
    for number in range(11):  # drive_10 is after drive_9
        write_mcap(folder / f"drive_{number}.mcap", written[3 * number : 3 * number + 3], chunk=1)
    last = folder / "drive_10.mcap"
    ends = write_mcap(last, written[30:], index=False, chunk=1)
    last.write_bytes(last.read_bytes()[: ends[2] - 5])
    found, (damage,) = read(folder)
    assert found == written[:32]
    assert damage.startswith("drive_10.mcap: truncated or damaged")
    assert damage.endswith("repair: mcap recover")


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 3000), index=st.booleans())
def test_a_file_cut_anywhere_has_every_whole_message(
    tmp_path_factory: pytest.TempPathFactory, cut: int, index: bool
) -> None:
    """Each message is a chunk, followed by records that index it."""
    written = messages(12)
    file = tmp_path_factory.mktemp("cut") / "x.mcap"
    ends = write_mcap(file, written, index=index, chunk=1)
    file.write_bytes(file.read_bytes()[:-1][:cut])
    try:
        found, damage = read(file)
    except BagError:
        found, damage = [], ["no message at all"]
    assert found == written[: len(found)]
    assert 0 <= len(found) - sum(end <= cut for end in ends) <= 1
    assert len(damage) == 1


def test_reading_ends_at_a_damaged_chunk(tmp_path: Path) -> None:
    """Its checksum is wrong; the index of the file is intact."""
    written = messages(12)
    file = tmp_path / "x.mcap"
    ends = write_mcap(file, written, chunk=1)
    data = bytearray(file.read_bytes())
    data[data.index(written[6].data) + 20] ^= 0xFF
    assert ends[5] < data.index(written[7].data)
    file.write_bytes(data)
    found, (damage,) = read(file)
    assert found == written[:6]
    assert "crc" in damage


@STORAGES
def test_a_damaged_file_does_not_hide_the_next_one(tmp_path: Path, storage: str) -> None:
    written = messages(8, 3000)
    suffix = {"mcap": "mcap", "sqlite3": "db3"}[storage]
    folder = tmp_path / "bag"
    folder.mkdir()
    for number, part in enumerate((written[:4], written[4:])):
        write_bag(tmp_path / f"part{number}", part, storage).rename(folder / f"x_{number}.{suffix}")
    first = folder / f"x_0.{suffix}"
    first.write_bytes(first.read_bytes()[: first.stat().st_size // 2])
    found, (damage,) = read(folder)
    assert found[-4:] == written[4:]
    assert found[:-4] == written[: len(found) - 4]
    assert first.name in damage
    assert str(tmp_path) not in damage


def test_messages_in_the_log_of_a_killed_recorder_are_read(tmp_path: Path) -> None:
    """The database is in mode WAL; nothing is written beside it."""
    file = write_bag(tmp_path / "bag", messages(2), "sqlite3")
    copy = tmp_path / "killed.db3"
    database = sqlite3.connect(file)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("INSERT INTO messages(topic_id, timestamp, data) VALUES (1, 5, ?)", (cdr("new"),))
    database.commit()
    copy.write_bytes(file.read_bytes())
    copy.with_name("killed.db3-wal").write_bytes(file.with_name(f"{file.name}-wal").read_bytes())
    database.close()
    before = sorted(tmp_path.iterdir())
    assert (BagMessage("/a", STRING, 5, cdr("new")) in read(copy)[0], read(copy)[1]) == (True, [])
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("content", [b"", b"\x89MCAP0\r\n", b"not a bag at all", os.urandom(5000)])
@pytest.mark.parametrize("name", ["x.mcap", "x.db3", "x.mcap.zstd"])
def test_garbage_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(BagError, match=str(tmp_path)):
            BagReader(path)
