"""Recordings made to harm: chunks that inflate without end, databases that compute, names that leave the folder."""

from __future__ import annotations

import resource
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lz4.frame
import pytest

from multi_dnn_ros.bags import BagError, BagReader, BagWriter
from multi_dnn_ros.bags.decompression import BoundedFile, TooLargeError, decompress_chunk, decompress_message, zstd

STRING = "std_msgs/msg/String"
DATA = b"\x00\x01\x00\x00\x02\x00\x00\x00a\x00"
BOMB_BYTES = 3 << 30  # more than the address space that the tests leave
SPARE_BYTES = 2 << 30


@contextmanager
def little_memory() -> Iterator[None]:
    """An allocation of more than SPARE_BYTES fails, instead of taking the machine's memory."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Some hundred kilobytes that inflate to 3 GiB of zeros."""
    piece, packer = bytes(1 << 24), zstd.ZstdCompressor(level=1)
    packed = b"".join(packer.compress(piece) for _ in range(BOMB_BYTES >> 24)) + packer.flush()
    writer = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB)
    head, block = writer.begin(), writer.compress(piece)
    lz4_bomb = head + block * 24 + writer.flush()
    return {"zstd": packed, "lz4": lz4_bomb}


def recording(path: Path, storage: str = "mcap") -> Path:
    with BagWriter(path, storage) as writer:
        writer.add_topic("/a", STRING)
        writer.write("/a", 1, DATA)
    (file,) = (file for file in path.iterdir() if file.suffix in (".mcap", ".db3"))
    return file


def with_chunk(path: Path, compression: str, packed: bytes, claim: int) -> Path:
    """An unindexed MCAP of one chunk."""

    def text(value: str) -> bytes:
        return struct.pack("<I", len(value)) + value.encode()

    def record(opcode: int, body: bytes) -> bytes:
        return struct.pack("<BQ", opcode, len(body)) + body

    chunk = struct.pack("<QQQI", 0, 1, claim, 0) + text(compression) + struct.pack("<Q", len(packed)) + packed
    records = record(1, text("ros2") + text("x")) + record(6, chunk) + record(15, bytes(4)) + record(2, bytes(20))
    path.write_bytes(b"\x89MCAP0\r\n" + records + b"\x89MCAP0\r\n")
    return path


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("claim", [100, BOMB_BYTES, 2**63])
def test_a_chunk_that_inflates_without_end(
    tmp_path: Path, bombs: dict[str, bytes], compression: str, claim: int
) -> None:
    file = with_chunk(tmp_path / "bomb.mcap", compression, bombs[compression], claim)
    with little_memory(), pytest.raises(BagError, match=r"bomb\.mcap"):
        BagReader(file)


@pytest.mark.parametrize("compression", ["zstd", "lz4", ""])
def test_a_chunk_is_inflated_to_what_it_claims(compression: str) -> None:
    data = b"records" * 1000
    packed = {"zstd": zstd.compress, "lz4": lz4.frame.compress, "": bytes}[compression](data)
    assert decompress_chunk(packed, len(data), compression) == data
    if compression:
        with pytest.raises(TooLargeError, match="6999"):
            decompress_chunk(packed, len(data) - 1, compression)
        with pytest.raises((EOFError, RuntimeError)):
            decompress_chunk(packed[:-8], len(data), compression)
    with pytest.raises(TooLargeError, match="'brotli'"):
        decompress_chunk(packed, len(data), "brotli")


def test_messages_and_files_compressed_by_themselves(
    tmp_path: Path, bombs: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """rosbag2's compression modes `message` and `file`, with valid and with hostile data."""
    assert decompress_message(zstd.compress(DATA)) == DATA
    monkeypatch.setattr("multi_dnn_ros.bags.decompression.MAX_CHUNK_BYTES", 1 << 25)
    with pytest.raises(TooLargeError, match=str(1 << 25)):
        decompress_message(bombs["zstd"])
    file = recording(tmp_path / "bag")
    metadata = tmp_path / "bag" / "metadata.yaml"
    text = metadata.read_text().replace("compression_format: ''", "compression_format: zstd")
    metadata.write_text(
        text.replace("compression_mode: ''", "compression_mode: file").replace("recording.mcap", "recording.mcap.zstd")
    )
    packed = file.with_name("recording.mcap.zstd")
    packed.write_bytes(zstd.compress(file.read_bytes()))
    file.unlink()
    with BagReader(tmp_path / "bag") as bag:
        assert [message.data for message in bag.messages()] == [DATA]
    monkeypatch.setattr("multi_dnn_ros.bags.decompression._MIN_FILE_LIMIT_BYTES", 1 << 20)
    packed.write_bytes(zstd.compress(bytes(1 << 25)))
    with packed.open("rb") as compressed, BoundedFile(compressed, "rb") as inflating:
        assert len(inflating.read(1 << 20)) == 1 << 20
        with pytest.raises(TooLargeError, match="1048576 bytes"):
            inflating.read(1 << 20)
    with pytest.raises(BagError, match=str(tmp_path / "bag")):
        BagReader(tmp_path / "bag")


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE messages RENAME TO old; CREATE VIEW messages AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT "
        "i + 1 FROM n) SELECT i AS id, 1 AS topic_id, i AS timestamp, zeroblob(1000000000) AS data FROM n",
        "CREATE VIEW extra AS SELECT 1",
        "DROP TABLE messages; CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id, timestamp, "
        "data AS (zeroblob(1000000000)))",
        "CREATE VIRTUAL TABLE extra USING fts5(x)",
    ],
)
def test_a_database_that_computes_is_refused(tmp_path: Path, change: str) -> None:
    file = recording(tmp_path / "bag", "sqlite3")
    with sqlite3.connect(file) as database:
        database.executescript(change)
    database.close()
    for path in (file, tmp_path / "bag"):
        with pytest.raises(BagError, match=rf"{file.name}: .*computed by a query"):
            BagReader(path)


def test_metadata_that_names_a_file_elsewhere_reads_none(tmp_path: Path) -> None:
    """Only the last part of the path counts; the file is looked for in the recording's own folder."""
    recording(tmp_path / "elsewhere")
    recording(tmp_path / "bag").unlink()
    metadata = tmp_path / "bag" / "metadata.yaml"
    metadata.write_text(metadata.read_text().replace("recording.mcap", "../elsewhere/recording.mcap"))
    with pytest.raises(BagError, match=str(tmp_path / "bag")):
        BagReader(tmp_path / "bag")


def test_replay_of_a_bomb_is_one_line_and_leaves_nothing(tmp_path: Path, bombs: dict[str, bytes]) -> None:
    """Through the command, in a process that could not hold the inflated chunk."""
    file = with_chunk(tmp_path / "bomb.mcap", "zstd", bombs["zstd"], 1 << 20)
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({SPARE_BYTES}, {SPARE_BYTES}));"
        "from multi_dnn_ros.cli.main import main;"
        f"raise SystemExit(main(['replay', {str(file)!r}, {str(tmp_path / 'out')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith(f"multi-dnn replay: error: {file}: not one message can be read: chunk ")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bomb.mcap"]
