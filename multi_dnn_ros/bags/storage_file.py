"""One storage file of a recording: read by rosbags if intact, otherwise its intact messages are recovered."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rosbags.interfaces import Connection, ConnectionExtRosbag2
from rosbags.rosbag2 import Reader

from multi_dnn_ros.bags.decompression import DECOMPRESSION_ERRORS, TooLargeError, decompress_message
from multi_dnn_ros.bags.mcap_records import McapDamage, read_summary
from multi_dnn_ros.bags.salvage import Note, Salvage, Salvaged, cdr_type, salvage, scan_topics
from multi_dnn_ros.bags.sqlite_pages import SqliteDamage
from multi_dnn_ros.common.error_causes import error_and_causes

STORAGE_SUFFIXES = (".mcap", ".db3")

#: What the rosbags reader raises for a damaged file: its own errors, those of sqlite and zstd, errors from unpacking or
#: slicing missing bytes, and MemoryError for an invalid length.
READ_ERRORS = Exception
#: Valid recording times: those that every storage format can hold.
_TIMES_NS = range(2**63)
#: Start of a message that the recorder compressed individually; CDR starts with a zero.
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class BagError(ValueError):
    """A recording cannot be read or written; the message names it and says why."""


@dataclass(frozen=True)
class BagTopic:
    """A topic of a recording. count: number of messages according to the file's index, or counted if there is none."""

    name: str
    msgtype: str
    count: int


@dataclass(frozen=True)
class BagMessage:
    """One recorded message. stamp_ns: when it was recorded. data: CDR bytes with their 4-byte header."""

    topic: str
    msgtype: str
    stamp_ns: int
    data: bytes


class StorageFile:
    """A .mcap or .db3 file open for reading.

    note: called with each damage, without the file's name.
    Raises BagError if nothing in the file can be read, or if it is a database with computed content.
    """

    def __init__(self, path: Path, note: Note) -> None:
        self._path = path
        self._note = note
        self._reader: Reader | None = None
        self._salvage: Salvage | None = None
        self._storage: Any = None
        try:
            if path.stat().st_size == 0 and not _has_log(path):
                raise BagError(f"{path} is empty (0 bytes)")
            if not has_index(path):
                self._open_salvage(None)
                return
            reader = Reader(path)
            reader.open()
            self._reader, self._storage = reader, reader.storage
        except BagError:
            raise
        except READ_ERRORS as error:
            self._open_salvage(error)

    def topics(self) -> list[BagTopic]:
        """Topics with the number of messages in the index or, for a damaged file, of intact messages."""
        if self._storage is not None:
            counts: Counter[tuple[str, str]] = Counter()
            for connection in self._storage.connections:
                counts[connection.topic, _msgtype(connection)] += connection.msgcount
        else:
            assert self._salvage is not None
            counts = self._salvage.counts
        return [BagTopic(topic, msgtype, count) for (topic, msgtype), count in counts.items()]

    def messages(self, topics: Collection[str]) -> Iterator[BagMessage]:
        """The messages on `topics` in order of time. A damaged .mcap file is in this order only within each chunk; an
        .mcap file without chunks is in recorded order.

        Raises BagError if the system cannot read the file to its end, for example from a failing disk.
        """
        last_ns: int | None = None
        at_last: Counter[str] = Counter()  # messages returned with the time last_ns, by topic
        failure: Exception | None = None
        try:
            for message in self._indexed(topics):
                if message.stamp_ns != last_ns:
                    last_ns = message.stamp_ns
                    at_last.clear()
                at_last[message.topic] += 1
                yield from self._checked(message)
        except READ_ERRORS as error:
            failure = error
        if self._storage is not None and failure is None:
            return
        if self._salvage is None:
            assert failure is not None
            self._open_salvage(failure)
        assert self._salvage is not None
        # rosbags returns messages by time: the remaining ones have the last time or a later one.
        try:
            for message in self._salvage.messages(topics):
                if last_ns is None or message.stamp_ns > last_ns:
                    yield from self._checked(message)
                elif message.stamp_ns == last_ns:
                    if at_last[message.topic]:
                        at_last[message.topic] -= 1
                    else:
                        yield from self._checked(message)
        except OSError as error:
            raise self._unreadable(error) from error

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._reader is not None:
            self._reader.close()
        if self._salvage is not None:
            self._salvage.close()
        self._reader = self._salvage = None

    def _indexed(self, topics: Collection[str]) -> Iterator[Salvaged]:
        """The messages that the index lists. If some are not found, this is noted, or BagError is raised at the end so
        that the caller salvages them.
        """
        connections = [x for x in self._storage.connections if x.topic in topics] if self._storage is not None else []
        if not connections:  # rosbags treats an empty list as all connections
            return
        # rosbags rejects a file without chunks if its messages are not in order of time, so such a file is scanned.
        scans = self._path.suffix == ".mcap" and not self._storage.chunks
        left: Counter[str] = Counter()
        for connection in connections:
            left[connection.topic] += connection.msgcount
        for message in scan_topics(self._path, self._note, topics) if scans else self._by_index(connections):
            left[message.topic] -= 1
            yield message
        if missing := +left:
            listing = ", ".join(f"{count} on {topic}" for topic, count in missing.items())
            text = f"messages that the index lists were not found: {listing}"
            if not scans:  # rosbags skips chunks without an index of their messages
                raise BagError(text)
            self._note(text)

    def _by_index(self, connections: Collection[Connection]) -> Iterator[Salvaged]:
        for connection, stamp_ns, data in self._storage.messages(connections):
            yield Salvaged(connection.topic, _msgtype(connection), stamp_ns, data)

    def _checked(self, message: Salvaged) -> Iterator[BagMessage]:
        """Yield the message, decompressed. If its time or data is invalid, note that and yield nothing."""
        if message.stamp_ns not in _TIMES_NS:
            self._note(f"message on {message.topic} has recording time {message.stamp_ns} ns, which is out of range")
            return
        data = message.data
        if data.startswith(_ZSTD_MAGIC):
            try:
                data = decompress_message(data)
            except (TooLargeError, *DECOMPRESSION_ERRORS) as error:
                self._note(f"message on {message.topic} at {message.stamp_ns} ns cannot be decompressed: {error}")
                return
        yield BagMessage(message.topic, message.msgtype, message.stamp_ns, data)

    def _open_salvage(self, failure: Exception | None) -> None:
        noted: list[str] = []

        def note(text: str) -> None:
            noted.append(text)
            self._note(text)

        try:
            self._salvage = salvage(self._path, note)
        except (McapDamage, SqliteDamage) as error:
            raise BagError(f"{self._path}: {error}") from failure
        except OSError as error:
            raise self._unreadable(error) from error
        if not self._salvage.counts.total():
            why = noted[0] if noted else "the file holds none"
            self._salvage.close()
            raise BagError(f"{self._path}: not one message can be read: {why}") from failure
        if failure is not None and not noted and _is_damage(failure):
            self._note(str(failure).replace(f"{self._path.parent}/", ""))

    def _unreadable(self, error: OSError) -> BagError:
        return BagError(f"{self._path} cannot be read: {error.strerror or error}")


def _msgtype(connection: Connection) -> str:
    assert isinstance(connection.ext, ConnectionExtRosbag2)
    return cdr_type(connection.msgtype, connection.ext.serialization_format)


def _is_damage(error: Exception) -> bool:
    """Whether an error means that bytes are wrong or missing. Whatever else rosbags refuses (profiles, encodings, QoS)
    is not damage if all messages were found without it.
    """
    damage = (McapDamage, SqliteDamage, BagError, OSError, sqlite3.Error)
    # rosbags reads databases with apsw, which has errors of its own.
    return any(isinstance(x, damage) or type(x).__module__ == "apsw" for x in error_and_causes(error))


def has_index(path: Path) -> bool:
    """Whether a file has the parts that the rosbags reader relies on without checking them.

    False: the file may be undamaged, but has no summary, or a log next to it holds newer rows. Raises McapDamage,
    SqliteDamage or sqlite3.Error if these parts are damaged, and BagError for a database with computed content: a view
    is a query, which may be designed never to end.
    """
    if path.suffix == ".mcap":
        with path.open("rb") as file:
            return read_summary(file, path.stat().st_size) is not None
    if _has_log(path):
        return False
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        computed = database.execute(
            "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'create virtual%' UNION "
            "SELECT s.name FROM sqlite_master s, pragma_table_xinfo(s.name) c WHERE s.type = 'table' AND c.hidden <> 0"
        ).fetchone()
        if computed is not None:
            name = str(computed[0])[:80]
            raise BagError(f"{path}: {name!r} is computed by a query; a recording holds plain tables only")
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'timestamp_idx'").fetchone():
            rows, indexed = (
                database.execute(f"SELECT count(*) FROM messages {how}").fetchone()[0]
                for how in ("NOT INDEXED", "INDEXED BY timestamp_idx")
            )
            if rows != indexed:
                raise SqliteDamage(f"the index lists {indexed} of {rows} messages")
    return True


def _has_log(path: Path) -> bool:
    """Whether a log next to the database holds content that is not yet in it."""
    logs = (path.with_name(f"{path.name}-{kind}") for kind in ("wal", "journal"))
    return path.suffix == ".db3" and any(log.is_file() and log.stat().st_size for log in logs)
