"""Truncated or corrupted MCAP files: every intact message is read, and each damaged part reported."""

from __future__ import annotations

import struct
import tempfile
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import messages, plain_mcap, read, with_summary, write_bag

from multi_dnn_ros.bags import BagError

WRITTEN = messages(24, 300)
PLAIN, PLAIN_ENDS = plain_mcap(WRITTEN)
CHUNKED, CHUNKED_ENDS = plain_mcap(WRITTEN, chunk=4)


def saved(data: bytes, folder: Path) -> Path:
    path = folder / "x.mcap"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("whole", "ends"), [(PLAIN, PLAIN_ENDS), (CHUNKED, CHUNKED_ENDS)], ids=["plain", "chunked"])
def test_a_file_truncated_anywhere_gives_every_complete_message(tmp_path: Path, whole: bytes, ends: list[int]) -> None:
    for cut in {*range(ends[0], len(whole), 97), *ends, *(end - 1 for end in ends[1:])}:
        path = saved(whole[:cut], tmp_path)
        found, damage = read(path)
        assert found == WRITTEN[: sum(end <= cut for end in ends)], cut
        assert any("truncated" in text for text in damage)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_the_complete_messages_of_a_truncated_compressed_chunk_are_read(tmp_path: Path, compression: str) -> None:
    written = messages(400, 4000)
    data, _ = plain_mcap(written, chunk=400, compression=compression)
    found, damage = read(saved(data[: len(data) // 2], tmp_path))
    assert found == written[: len(found)]
    assert 100 <= len(found) < 399
    assert any("truncated at byte" in text for text in damage)


def test_a_chunk_with_a_wrong_checksum_is_skipped_and_reported(tmp_path: Path) -> None:
    data = bytearray(CHUNKED)
    data[CHUNKED_ENDS[9] - 10] ^= 0x40  # in the third of six chunks
    found, damage = read(saved(bytes(data), tmp_path))
    assert found == [*WRITTEN[:8], *WRITTEN[12:]]
    (text,) = damage
    assert text.startswith("x.mcap: chunk at byte ")
    assert "checksum" in text
    assert text.endswith("; 4 messages are lost")


def test_a_chunk_without_a_checksum_is_read_unverified(tmp_path: Path) -> None:
    whole, ends = plain_mcap(WRITTEN, chunk=4, checksums=False)
    data = bytearray(whole)
    data[ends[9] - 10] ^= 0x40
    found, damage = read(saved(bytes(data), tmp_path))
    assert len(found) == len(WRITTEN)
    assert damage == []


def test_an_indexed_file_with_a_bad_chunk_gives_the_rest(tmp_path: Path) -> None:
    written = messages(60, 200_000)  # a dozen chunks
    file = write_bag(tmp_path / "bag", written, "mcap")
    data = bytearray(file.read_bytes())
    middle = data.index(b"\x28\xb5\x2f\xfd", len(data) // 2)  # start of a zstd frame
    data[middle : middle + 100] = bytes(100)
    file.write_bytes(data)
    for path in (file, tmp_path / "bag"):
        found, damage = read(path)
        lost = [message for message in written if message not in found]
        assert found == [message for message in written if message not in lost]
        assert 1 <= len(lost) <= 12
        (text,) = damage
        assert text.startswith(f"{file.name}: chunk at byte ")
        assert text.endswith(f"; {len(lost)} messages are lost")


def test_messages_without_chunks_are_read_in_recorded_order(tmp_path: Path) -> None:
    """As written by `ros2 bag record --storage-preset-profile fastwrite` while the clock was set back."""
    written = messages(24, 300)
    written[5], written[17] = written[17], written[5]
    assert read(saved(with_summary(plain_mcap(written)[0], written), tmp_path)) == (written, [])


def test_a_message_outside_chunks_with_a_damaged_opcode_is_counted(tmp_path: Path) -> None:
    """No checksum covers the opcode, and applications may define opcodes of their own."""
    whole = bytearray(with_summary(PLAIN, WRITTEN))
    whole[PLAIN_ENDS[9]] = 0x81  # the start of the next record
    found, damage = read(saved(bytes(whole), tmp_path))
    assert found == [*WRITTEN[:10], *WRITTEN[11:]]
    assert damage == ["x.mcap: messages that the index lists were not found: 1 on /a"]


def test_chunks_without_message_indexes_are_read(tmp_path: Path) -> None:
    found, damage = read(saved(with_summary(CHUNKED, WRITTEN), tmp_path))
    assert found == WRITTEN
    assert damage == ["x.mcap: messages that the index lists were not found: 12 on /a, 12 on /b"]


def test_a_flipped_byte_in_the_summary_loses_nothing(tmp_path: Path) -> None:
    written = messages(6, 100)
    file = write_bag(tmp_path / "bag", written, "mcap")
    data = bytearray(file.read_bytes())
    at = data.rindex(b"/a")  # the channel's topic in the summary
    start, offsets, _ = struct.unpack("<QQI", data[-28:-8])
    checksum = crc32(data[start:-12])  # ROS recorders write it, rosbags does not
    data[at + 1] = ord("x")
    data[-28:-8] = struct.pack("<QQI", start, offsets, checksum)
    file.write_bytes(data)
    for path in (file, tmp_path / "bag"):
        found, damage = read(path)
        assert found == written
        assert any("summary at byte" in text and "checksum" in text for text in damage)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_message_with_a_time_out_of_range_is_damage(tmp_path: Path, storage: str) -> None:
    """MCAP times may be any 64 bits, sqlite3 times also negative; the messages read fit into both formats."""
    written = messages(6, 100)
    bad = 2**63 if storage == "mcap" else -1
    damaged = [*written[:3], replace(written[3], stamp_ns=bad), *written[4:]]
    if storage == "mcap":
        file = saved(plain_mcap(damaged)[0], tmp_path)
    else:
        file = write_bag(tmp_path / "bag", damaged, "sqlite3")
    found, damage = read(file)
    assert found == [*written[:3], *written[4:]]
    assert damage == [f"{file.name}: message on /b has recording time {bad} ns, which is out of range"]
    for other in ("mcap", "sqlite3"):
        assert read(write_bag(tmp_path / other, found, other)) == (found, [])


@settings(max_examples=150, deadline=None)
@given(at=st.integers(300, len(CHUNKED) - 1), patch=st.binary(min_size=1, max_size=80), chunked=st.booleans())
def test_wrong_bytes_never_become_messages_of_a_checked_chunk(at: int, patch: bytes, chunked: bool) -> None:
    whole = CHUNKED if chunked else PLAIN
    data = whole[:at] + patch + whole[at + len(patch) :]
    with tempfile.TemporaryDirectory() as folder:
        found, damage = read(saved(data, Path(folder)))
    if chunked:
        assert all(message in WRITTEN for message in found)
        assert len(found) >= len(WRITTEN) - 8  # the patch touches two chunks at most
        assert len(found) == len(WRITTEN) or damage
    else:  # no checksums: the message under the patch is read unverified, or lost with its record
        assert sum(message in WRITTEN for message in found) >= len(WRITTEN) - 3


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=400))
def test_random_bytes_after_the_magic_raise_only_bag_error(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = saved(b"\x89MCAP0\r\n" + data, Path(folder))
        with pytest.raises(BagError, match=r"x\.mcap: "):
            read(path)
