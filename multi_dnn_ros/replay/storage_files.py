"""One storage file of a recording: .mcap by the library of MCAP, .db3 by SQLite.

Reading a damaged file ends after its last whole message; :attr:`StorageFile.damage` says why, and what repairs it.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from mcap.reader import NonSeekingReader, SeekingReader
from mcap.records import Channel, Message, Schema

from multi_dnn_ros.common.errors import summarize_error

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

#: Start of a message that the recorder compressed individually; CDR starts with a zero.
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: Longest record of an .mcap file, 1 GiB. Recorders write chunks of about a MiB, or of one larger message.
_MCAP_OPTIONS: Any = {"validate_crcs": True, "record_size_limit": 1 << 30}


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


class StorageFile(ABC):
    """A file open for reading. topics: its topics. damage: what is damaged; empty if nothing was found so far.

    Raises BagError if nothing in the file can be read.
    """

    _REPAIR: ClassVar[str]

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.damage = ""
        self._stack = ExitStack()
        try:
            self.topics = self._open(path)
        except Exception as error:  # the libraries raise arbitrary errors for damaged bytes
            self.close()
            raise BagError(f"{path}: {self._text(error)}") from error

    def messages(self, topics: Collection[str]) -> Iterator[BagMessage]:
        """The whole messages on `topics` before the first damaged byte, by time; in the order of the file if it has no
        index.
        """
        try:
            for message in self._read(topics):
                # Compressed by the recorder, one by one.
                packed = message.data.startswith(_ZSTD_MAGIC)
                yield replace(message, data=zstd.decompress(message.data)) if packed else message
        except Exception as error:  # as above; an error of the caller does not arrive here
            self.damage = self._text(error)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._stack.close()

    @abstractmethod
    def _open(self, path: Path) -> list[BagTopic]: ...

    @abstractmethod
    def _read(self, topics: Collection[str]) -> Iterator[BagMessage]: ...

    def _text(self, error: Exception) -> str:
        return f"truncated or damaged ({summarize_error(error)}); {self._REPAIR}"


class McapFile(StorageFile):
    """An .mcap file. One without a usable summary, as a killed recorder leaves it, is read from begin to end, and once
    before that to count its messages.
    """

    _REPAIR = "repair: mcap recover"

    def _open(self, path: Path) -> list[BagTopic]:
        self._file = self._stack.enter_context(path.open("rb"))
        self._reader = SeekingReader(self._file, **_MCAP_OPTIONS)
        topics = self._indexed_topics()
        self._has_index = topics is not None
        if topics is not None:
            return topics
        counts: Counter[tuple[str, str]] = Counter()
        try:
            for message in self._scan(None):
                counts[message.topic, message.msgtype] += 1
        except Exception as error:
            if not counts:
                raise
            self.damage = self._text(error)
        return [BagTopic(topic, msgtype, count) for (topic, msgtype), count in counts.items()]

    def _indexed_topics(self) -> list[BagTopic] | None:
        """The topics in the summary at the end of the file; None if it is damaged or incomplete."""
        try:
            summary = self._reader.get_summary()
        except Exception:  # then reading finds out where the damage begins
            return None
        if summary is None or summary.statistics is None or not summary.chunk_indexes:
            return None
        counts = summary.statistics.channel_message_counts
        if not counts.keys() <= summary.channels.keys():
            return None
        return [
            BagTopic(channel.topic, _type_of(summary.schemas.get(channel.schema_id)), counts.get(number, 0))
            for number, channel in summary.channels.items()
        ]

    def _read(self, topics: Collection[str]) -> Iterator[BagMessage]:
        return _messages(self._reader.iter_messages(topics)) if self._has_index else self._scan(topics)

    def _scan(self, topics: Collection[str] | None) -> Iterator[BagMessage]:
        """The messages on `topics`, or all, in the order of the file."""
        self._file.seek(0)
        return _messages(NonSeekingReader(self._file, **_MCAP_OPTIONS).iter_messages(topics, log_time_order=False))


class SqliteFile(StorageFile):
    """A .db3 file. One with a log beside it, as a killed recorder leaves it, is read from a copy, because SQLite writes
    into the folder of such a database.
    """

    _REPAIR = "repair: sqlite3 FILE .recover"

    def _open(self, path: Path) -> list[BagTopic]:
        logs = [log for kind in ("wal", "journal") if (log := path.with_name(f"{path.name}-{kind}")).is_file()]
        options = "mode=ro&immutable=1"
        if any(log.stat().st_size for log in logs):
            folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="multi_dnn_ros_")))
            for file in (path, *logs):
                shutil.copyfile(file, folder / file.name)
            path, options = folder / path.name, "mode=rw"
        self._database = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, check_same_thread=False)
        self._stack.callback(self._database.close)
        counts = dict(self._database.execute("SELECT topic_id, count(*) FROM messages GROUP BY topic_id"))
        rows = self._database.execute("SELECT id, name, type FROM topics ORDER BY id")
        self._topics = {number: BagTopic(name, msgtype, counts.get(number, 0)) for number, name, msgtype in rows}
        return list(self._topics.values())

    def _read(self, topics: Collection[str]) -> Iterator[BagMessage]:
        numbers = [number for number, topic in self._topics.items() if topic.name in topics]
        marks = ", ".join("?" * len(numbers))
        rows = self._database.execute(
            f"SELECT topic_id, timestamp, data FROM messages WHERE topic_id IN ({marks}) ORDER BY timestamp, id",
            numbers,
        )
        for number, stamp_ns, data in rows:
            topic = self._topics[number]
            yield BagMessage(topic.name, topic.msgtype, stamp_ns, data)


def _messages(records: Iterable[tuple[Schema | None, Channel, Message]]) -> Iterator[BagMessage]:
    for schema, channel, message in records:
        yield BagMessage(channel.topic, _type_of(schema), message.log_time, message.data)


def _type_of(schema: Schema | None) -> str:
    return "" if schema is None else schema.name
