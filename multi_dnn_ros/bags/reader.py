"""Reading a rosbag2 recording: a folder, or one of its .mcap or .db3 files, whole or cut short."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from rosbags.interfaces import Connection
from rosbags.rosbag2 import Reader

import multi_dnn_ros.bags.inflation  # noqa: F401  bounds what the rosbags reader decompresses
from multi_dnn_ros.bags.mcap_scan import McapDamage, scan_mcap
from multi_dnn_ros.natural_order import natural_order

STORAGE_SUFFIXES = (".mcap", ".db3")

# What the rosbags reader lets through from a damaged file: its own errors, sqlite's and zstd's, those of unpacking and
# slicing bytes that are not there, and MemoryError for a length that is garbage.
_READ_ERRORS = Exception


class BagError(ValueError):
    """A recording cannot be read or written; the message names it and says why."""


@dataclass(frozen=True)
class BagTopic:
    """A topic of a recording. count: messages according to the files' index, or counted where there is none."""

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


class _Storage(Protocol):
    def topics(self) -> list[BagTopic]: ...

    def messages(self, topics: Collection[str]) -> Iterator[BagMessage]: ...

    def close(self) -> None: ...


class BagReader:
    """A recording open for reading; a context manager.

    path: a rosbag2 folder with or without its ``metadata.yaml`` (a killed recorder writes none), or one .mcap or .db3
    file. What is damaged is read as far as it is whole; :attr:`damage` then says what was wrong.

    Raises BagError: it does not exist, is no recording, or nothing in it can be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.damage: list[str] = []
        self._storages: list[_Storage] = self._open()
        self._note_journals()
        self.topics: dict[str, BagTopic] = {}
        for topic in (topic for storage in self._storages for topic in storage.topics()):
            known = self.topics.get(topic.name)
            if known is not None and known.msgtype != topic.msgtype:
                self.close()
                raise BagError(f"{self.path}: topic {topic.name} has two types, {known.msgtype} and {topic.msgtype}")
            count = topic.count + (known.count if known else 0)
            self.topics[topic.name] = BagTopic(topic.name, topic.msgtype, count)

    def messages(self, topics: Collection[str] | None = None) -> Iterator[BagMessage]:
        """The messages on `topics` (None: on all), in order of recording time.

        A damaged file ends the messages of that file early and is noted in :attr:`damage`; it raises nothing, because
        what was whole has already been handed out.
        """
        wanted = set(self.topics if topics is None else topics)
        if unknown := wanted - self.topics.keys():
            raise BagError(f"{self.path} has no topic {', '.join(sorted(unknown))}; it has {_listing(self.topics)}")
        for storage in self._storages:
            try:
                yield from storage.messages(wanted)
            except McapDamage as error:
                self._note(f"{self.path}: {error}")
            except _READ_ERRORS as error:
                self._note(f"{self.path}: cannot be read further: {error}")

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        while self._storages:
            self._storages.pop().close()

    def __enter__(self) -> BagReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _note(self, damage: str) -> None:
        if damage not in self.damage:
            self.damage.append(damage)

    def _note_journals(self) -> None:
        """A killed recorder's last messages may lie beside the database, where what is only read cannot take them."""
        for database in [self.path] if self.path.is_file() else sorted(self.path.glob("*.db3")):
            for journal in (database.with_name(f"{database.name}-{kind}") for kind in ("wal", "journal")):
                if journal.is_file() and journal.stat().st_size:
                    self._note(
                        f"{journal}: left out; `sqlite3 {database} 'PRAGMA journal_mode=DELETE'` brings it in order"
                    )

    def _open(self) -> list[_Storage]:
        if not self.path.exists():
            raise BagError(f"bag {self.path} does not exist")
        if self.path.is_file():
            if self.path.suffix not in STORAGE_SUFFIXES:
                raise BagError(f"bag {self.path}: expected a folder, or a file that ends in .mcap or .db3")
            return [self._open_file(self.path)]
        if (self.path / "metadata.yaml").exists():
            try:
                return [_Indexed(self.path)]
            except _READ_ERRORS as error:
                self._note(f"{self.path}: {error}")
        found = (file for file in self.path.iterdir() if file.suffix in STORAGE_SUFFIXES)
        files = sorted(found, key=lambda file: natural_order(file.name))  # as a recorder numbers them
        for packed in sorted(self.path.glob("*.zstd")):
            if packed.with_suffix("") not in files:
                self._note(f"{packed}: left out, it can be read with metadata.yaml only; unpack it with `unzstd`")
        if not files:
            more = f" ({'; '.join(self.damage)})" if self.damage else ""
            raise BagError(
                f"{self.path} is not a rosbag2 recording: no usable metadata.yaml and no .mcap or .db3 file{more}"
            )
        storages: list[_Storage] = []
        for file in files:
            try:
                storages.append(self._open_file(file))
            except BagError as error:
                self._note(str(error))
        if not storages:
            raise BagError(f"{self.path}: no file of it can be read: {'; '.join(self.damage)}")
        return storages

    def _open_file(self, path: Path) -> _Storage:
        try:
            return _Indexed(path)
        except _READ_ERRORS as error:
            if path.stat().st_size == 0:
                raise BagError(f"{path} is empty (0 bytes)") from error
            if path.suffix != ".mcap":
                raise BagError(f"{path}: {error}") from error
            self._note(f"{path}: {error}")
        scanned = _Scanned(path)
        if not scanned.topics():
            raise BagError(f"{path}: not one message can be read: {scanned.damage or 'there is none in it'}")
        return scanned


class _Indexed:
    """A whole recording or file, through rosbags."""

    def __init__(self, path: Path) -> None:
        for database in [path] if path.is_file() else sorted(path.glob("*.db3")):
            if database.suffix == ".db3" and database.stat().st_size:
                _check_database(database)
        self._reader = Reader(path)
        self._reader.open()
        # Of a folder the reader has its topics from metadata.yaml, and leaves out in silence what does not fit there.
        storage: Any = self._reader.storage
        self._held: list[Connection] = [x for file in getattr(storage, "storages", [storage]) for x in file.connections]
        for found in self._held:
            if found.msgcount and not any(_same_topic(found, listed) for listed in self._reader.connections):
                self._reader.close()
                raise BagError(f"metadata.yaml does not list {found.topic} ({found.msgtype}) as it was recorded")

    def topics(self) -> list[BagTopic]:
        counts = Counter({(x.topic, x.msgtype): 0 for x in self._reader.connections})
        for held in self._held:
            counts[held.topic, held.msgtype] += held.msgcount
        return [BagTopic(topic, msgtype, count) for (topic, msgtype), count in counts.items()]

    def messages(self, topics: Collection[str]) -> Iterator[BagMessage]:
        connections: list[Connection] = [x for x in self._reader.connections if x.topic in topics]
        if not connections:  # rosbags takes an empty list for all of them
            return
        for connection, stamp_ns, data in self._reader.messages(connections):
            yield BagMessage(connection.topic, connection.msgtype, stamp_ns, data)

    def close(self) -> None:
        self._reader.close()


class _Scanned:
    """An MCAP file without an index. Read through once to learn its topics, and again for the messages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damage = ""
        counts: Counter[tuple[str, str]] = Counter()
        try:
            for message in scan_mcap(path):
                counts[message.channel.topic, message.channel.msgtype] += 1
        except McapDamage as error:
            self.damage = str(error)
        self._topics = [BagTopic(topic, msgtype, count) for (topic, msgtype), count in counts.items()]

    def topics(self) -> list[BagTopic]:
        return self._topics

    def messages(self, topics: Collection[str]) -> Iterator[BagMessage]:
        for message in scan_mcap(self._path):
            if message.channel.topic in topics:
                yield BagMessage(message.channel.topic, message.channel.msgtype, message.stamp_ns, message.data)

    def close(self) -> None:
        pass


def _same_topic(found: Connection, listed: Connection) -> bool:
    """As the rosbags reader decides it."""
    hashes = found.digest, listed.digest
    return (found.topic, found.msgtype, found.ext) == (listed.topic, listed.msgtype, listed.ext) and (
        not all(hashes) or hashes[0] == hashes[1]
    )


def _check_database(path: Path) -> None:
    """BagError for a database that computes what it holds: a view is a query, which may be meant never to end.

    Raises sqlite3.Error: it is no database.
    """
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        computed = database.execute(
            "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'create virtual%' UNION "
            "SELECT s.name FROM sqlite_master s, pragma_table_xinfo(s.name) c WHERE s.type = 'table' AND c.hidden <> 0"
        ).fetchone()
    if computed is not None:
        raise BagError(f"{path}: {str(computed[0])[:80]!r} is computed by a query; a recording holds plain tables only")


def _listing(topics: dict[str, BagTopic]) -> str:
    return ", ".join(f"{topic.name} ({topic.msgtype})" for topic in topics.values()) or "no topics"
