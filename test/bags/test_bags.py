"""Recordings are written completely or not at all, and damaged ones are read as far as they are intact."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rosbags.rosbag2 import Reader as RosbagsReader
from rosbags.typesys import Stores, get_typestore

from multi_dnn_ros.bags import BagError, BagMessage, BagReader, BagWriter
from multi_dnn_ros.bags.decompression import zstd
from multi_dnn_ros.bags.definitions import canonical, definition
from multi_dnn_ros.bags.mcap_scan import _Scan

STRING = "std_msgs/msg/String"
SECOND = 1_000_000_000


def cdr(text: str) -> bytes:
    """A std_msgs/String in CDR, encoded by hand."""
    data = text.encode() + b"\0"
    return b"\x00\x01\x00\x00" + len(data).to_bytes(4, "little") + data


def write(path: Path, storage: str = "mcap", count: int = 6, size: int = 40) -> list[BagMessage]:
    """Alternating messages on /a and /b, incompressible so that a file has several chunks when `size` is large."""
    messages = []
    with BagWriter(path, storage) as writer:
        writer.add_topic("/a", STRING)
        writer.add_topic("/b", STRING)
        writer.add_topic("/silent", STRING)
        for index in range(count):
            topic = "/ab"[0] + "ab"[index % 2]
            message = BagMessage(topic, STRING, index * SECOND, cdr(os.urandom(size // 2).hex()))
            writer.write(message.topic, message.stamp_ns, message.data)
            messages.append(message)
    return messages


def storage_file(path: Path) -> Path:
    (file,) = (file for file in path.iterdir() if file.suffix in (".mcap", ".db3"))
    return file


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_what_was_written_is_read(tmp_path: Path, storage: str) -> None:
    written = write(tmp_path / "bag", storage)
    for path in (tmp_path / "bag", storage_file(tmp_path / "bag")):
        with BagReader(path) as bag:
            assert {name: (topic.msgtype, topic.count) for name, topic in bag.topics.items()} == {
                "/a": (STRING, 3),
                "/b": (STRING, 3),
                "/silent": (STRING, 0),
            }
            assert list(bag.messages()) == written
            assert list(bag.messages(["/b"])) == written[1::2]
            assert list(bag.messages(["/silent"])) == []
            assert bag.damage == []


def test_other_readers_understand_it(tmp_path: Path) -> None:
    write(tmp_path / "bag")
    with RosbagsReader(tmp_path / "bag") as reader:
        assert reader.message_count == 6
        assert reader.duration == 5 * SECOND + 1
        assert {connection.digest for connection in reader.connections} == {definition(STRING)[1]}


@pytest.mark.parametrize("msgtype", ["sensor_msgs/msg/Image", "sensor_msgs/msg/PointCloud2", "std_msgs/msg/String"])
def test_derived_definition_equals_the_published_one(msgtype: str) -> None:
    assert definition(msgtype)[1] == get_typestore(Stores.ROS2_JAZZY).hash_rihs01(msgtype)


def test_vision_msgs_have_a_hash_and_a_definition() -> None:
    assert definition("vision_msgs/msg/Detection2DArray")[1].startswith("RIHS01_")
    assert "ObjectHypothesisWithPose[] results" in definition("vision_msgs/msg/Detection2DArray")[0]


def test_bytes_between_the_fields_of_a_message_are_zero() -> None:
    """Fast DDS leaves uninitialized memory there."""
    from rclpy.serialization import serialize_message
    from std_msgs.msg import Header
    from vision_msgs.msg import Detection2D, Detection2DArray

    message = Detection2DArray(header=Header(frame_id="front"))  # 6 bytes of text, then 2 bytes of padding
    message.detections = [Detection2D(id="x")]
    clean = canonical("vision_msgs/msg/Detection2DArray", bytes(serialize_message(message)))
    at = clean.index(b"front\0") + 6
    assert clean[at : at + 2] == bytes(2)
    assert canonical("vision_msgs/msg/Detection2DArray", clean[:at] + b"\xaa\xbb" + clean[at + 2 :]) == clean


def test_unknown_type_is_named() -> None:
    with pytest.raises(LookupError, match="no_msgs/msg/Nothing"):
        definition("no_msgs/msg/Nothing")


def test_a_failed_recording_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail_half_way() -> None:
        with BagWriter(tmp_path / "bag") as writer:
            writer.add_topic("/a", STRING)
            writer.write("/a", 1, cdr("x"))
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        fail_half_way()
    assert list(tmp_path.iterdir()) == []


@contextmanager
def full_disk(file_bytes: int) -> Iterator[None]:
    """Writing fails when a file reaches this size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def open_files(folder: Path) -> list[str]:
    descriptors = Path("/proc/self/fd")
    links = [os.readlink(entry) for entry in descriptors.iterdir() if entry.is_symlink()]
    return [link for link in links if link.startswith(str(folder))]


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("count", [1, 40])
def test_a_recording_on_a_full_disk_leaves_nothing_behind(tmp_path: Path, storage: str, count: int) -> None:
    """A single message is written when the recording is closed; with 40, the disk is full before that."""
    writer = BagWriter(tmp_path / "bag", storage)
    writer.add_topic("/a", STRING)
    data = cdr(os.urandom(50_000).hex())

    def record() -> None:
        with writer:
            for stamp_ns in range(count):
                writer.write("/a", stamp_ns, data)

    with full_disk(40_000), pytest.raises(BagError, match=r"cannot write .*bag"):
        record()
    assert list(tmp_path.iterdir()) == []
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("name", ["drive#1", "a?b", "100%"])
def test_a_path_that_sqlite_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BagError, match=r"the path of a sqlite3 recording must not contain '[#?%]'"):
        BagWriter(tmp_path / name, "sqlite3")
    assert list(tmp_path.iterdir()) == []
    written = write(tmp_path / name)
    with BagReader(tmp_path / name) as bag:
        assert list(bag.messages()) == written


def test_a_relative_path_in_a_folder_that_sqlite_would_misread_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run#1").mkdir()
    monkeypatch.chdir(tmp_path / "run#1")
    with pytest.raises(BagError, match=r"cannot write /.*/run#1/drive: .* must not contain '#'"):
        BagWriter("drive", "sqlite3")
    assert [path.name for path in tmp_path.rglob("*")] == ["run#1"]


def test_extra_files_become_part_of_the_recording(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "bag") as writer:
        (writer.partial / "notes.txt").write_text("n")
        assert not (tmp_path / "bag").exists()
    assert (tmp_path / "bag" / "notes.txt").read_text() == "n"
    assert [path.name for path in tmp_path.iterdir()] == ["bag"]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "bag").mkdir()
    with pytest.raises(BagError, match=r"bag already exists"):
        BagWriter(tmp_path / "bag")


def test_undeclared_topic_and_changed_type_are_named(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "bag") as writer:
        with pytest.raises(BagError, match="/a"):
            writer.write("/a", 1, cdr("x"))
        writer.add_topic("/a", STRING)
        with pytest.raises(BagError, match=r"/a .* has type std_msgs/msg/String; sensor_msgs/msg/Image"):
            writer.add_topic("/a", "sensor_msgs/msg/Image")


def test_parent_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BagError, match="cannot write"):
        BagWriter(tmp_path / "file" / "bag")


def test_killed_recorder_without_index_or_metadata(tmp_path: Path) -> None:
    written = write(tmp_path / "bag", count=60, size=200_000)  # a dozen chunks
    (tmp_path / "bag" / "metadata.yaml").unlink()
    file = storage_file(tmp_path / "bag")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with BagReader(tmp_path / "bag") as bag:
        read = list(bag.messages())
        assert read == written[: len(read)]
        assert 20 <= len(read) <= 35
        assert bag.topics["/a"].count + bag.topics["/b"].count == len(read)
        assert any("truncated at byte" in damage for damage in bag.damage)


def test_the_files_of_a_killed_recorder_are_read_in_recorded_order(tmp_path: Path) -> None:
    recording = tmp_path / "drive_2026"
    recording.mkdir()
    written = []
    for number in range(11):  # as text, drive_2026_10 comes before drive_2026_2
        part = tmp_path / f"part{number}"
        with BagWriter(part) as writer:
            writer.add_topic("/a", STRING)
            written.append(BagMessage("/a", STRING, number * SECOND, cdr(str(number))))
            writer.write("/a", number * SECOND, written[-1].data)
        storage_file(part).rename(recording / f"drive_2026_{number}.mcap")
    with BagReader(recording) as bag:
        assert list(bag.messages()) == written
        assert bag.damage == []


def test_compressed_files_of_a_killed_recorder_are_read_once(tmp_path: Path) -> None:
    """A recorder compresses each file when the next one begins, and writes metadata.yaml last."""
    written = write(tmp_path / "bag")
    (tmp_path / "bag" / "metadata.yaml").unlink()
    plain = storage_file(tmp_path / "bag")
    packed = plain.with_name(f"{plain.name}.zstd")
    packed.write_bytes(zstd.compress(plain.read_bytes())[:-100])  # killed while compressing
    with BagReader(tmp_path / "bag") as bag:
        assert list(bag.messages()) == written
        assert bag.damage == []
    packed.write_bytes(zstd.compress(plain.read_bytes()))
    plain.unlink()
    for path in (tmp_path / "bag", packed):
        with BagReader(path) as bag:
            assert list(bag.messages()) == written
            assert bag.damage == []
    packed.write_bytes(packed.read_bytes()[:-100])
    with pytest.raises(BagError, match=r"recording\.mcap\.zstd: cannot be unpacked"):
        BagReader(tmp_path / "bag")


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("count", ["0", "99", "null", "many"])
def test_message_counts_are_those_of_the_files_not_of_the_metadata(tmp_path: Path, storage: str, count: str) -> None:
    written = write(tmp_path / "bag", storage)
    metadata = tmp_path / "bag" / "metadata.yaml"
    metadata.write_text(metadata.read_text().replace("message_count: 3", f"message_count: {count}"))
    with BagReader(tmp_path / "bag") as bag:
        assert {name: topic.count for name, topic in bag.topics.items()} == {"/a": 3, "/b": 3, "/silent": 0}
        assert list(bag.messages()) == written


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize(("field", "other"), [("name: /a", "name: /x"), ("std_msgs/msg/String", "std_msgs/msg/Int8")])
def test_topics_that_differ_from_the_metadata_are_not_lost(
    tmp_path: Path, storage: str, field: str, other: str
) -> None:
    written = write(tmp_path / "bag", storage)
    metadata = tmp_path / "bag" / "metadata.yaml"
    metadata.write_text(metadata.read_text().replace(field, other, 1))
    with BagReader(tmp_path / "bag") as bag:
        assert list(bag.messages()) == written
        assert bag.damage == []


def test_an_empty_recording_without_index_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "bag", count=0)
    file = storage_file(tmp_path / "bag")
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(BagError, match="not one message can be read: truncated: the end of the file is missing"):
        BagReader(tmp_path / "bag")


@pytest.mark.parametrize("name", ["empty.mcap", "empty.db3"])
def test_empty_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(BagError, match=rf"{name} is empty"):
        BagReader(tmp_path / name)


def test_a_file_that_cannot_be_opened_is_damage(tmp_path: Path) -> None:
    written = write(tmp_path / "bag")
    (tmp_path / "bag" / "metadata.yaml").unlink()
    (tmp_path / "bag" / "lost.mcap").symlink_to(tmp_path / "nowhere")
    with BagReader(tmp_path / "bag") as bag:
        assert list(bag.messages()) == written
        assert bag.damage == ["lost.mcap cannot be read: No such file or directory"]


def test_a_disk_that_fails_while_a_file_is_read_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = write(tmp_path / "bag", count=60, size=200_000)  # a dozen chunks
    file = storage_file(tmp_path / "bag")
    file.write_bytes(file.read_bytes()[:-30])  # without its index
    good_bytes, read = file.stat().st_size // 2, _Scan._read

    def read_from_a_bad_disk(scan: _Scan, at: int, length: int) -> bytes:
        if at > good_bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(scan, at, length)

    with BagReader(file) as bag:
        monkeypatch.setattr(_Scan, "_read", read_from_a_bad_disk)
        found = list(bag.messages())
    assert found == written[: len(found)]
    assert 0 < len(found) < 60
    assert "recording.mcap cannot be read: Input/output error" in bag.damage


@pytest.mark.parametrize("content", [b"\x89MCAP0\r\n", b"not a bag at all", os.urandom(5000)])
@pytest.mark.parametrize("name", ["x.mcap", "x.db3"])
def test_garbage_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BagError, match=name):
        BagReader(tmp_path / name)


def test_a_path_that_is_not_a_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(BagError, match="nowhere does not exist"):
        BagReader(tmp_path / "nowhere")
    with pytest.raises(BagError, match="is not a rosbag2 recording"):
        BagReader(tmp_path)
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(BagError, match=r"x\.txt: expected"):
        BagReader(tmp_path / "x.txt")


def test_an_error_about_a_missing_topic_lists_the_existing_ones(tmp_path: Path) -> None:
    write(tmp_path / "bag")
    with BagReader(tmp_path / "bag") as bag, pytest.raises(BagError, match=r"no topic /c; it has /a \(std_msgs"):
        list(bag.messages(["/c"]))


@pytest.mark.parametrize("seed", range(3))
def test_no_damage_escapes_as_another_error(tmp_path: Path, seed: int) -> None:
    """With bytes overwritten anywhere, the result is messages, notes or a BagError, never another exception."""
    import random

    write(tmp_path / "bag", count=12, size=400)
    file = storage_file(tmp_path / "bag")
    whole = file.read_bytes()
    rng = random.Random(seed)
    for _ in range(60):
        data = bytearray(whole)
        at = rng.randrange(len(data))
        data[at : at + rng.choice((1, 4, 60))] = rng.randbytes(rng.choice((1, 4, 60)))
        file.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data))))])
        for path in (tmp_path / "bag", file):
            try:
                with BagReader(path) as bag:
                    list(bag.messages())
            except BagError:
                pass
