"""Recovers the messages of a storage file that the rosbags reader cannot read completely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from multi_dnn_ros.bags.mcap_records import McapChannel
from multi_dnn_ros.bags.mcap_scan import scan_mcap
from multi_dnn_ros.bags.sqlite_pages import Pages
from multi_dnn_ros.bags.sqlite_rows import BadRow, Rows

Note = Callable[[str], None]


class Salvaged(NamedTuple):
    """One message: topic, type, recording time, and its stored bytes."""

    topic: str
    msgtype: str
    stamp_ns: int
    data: bytes


class Salvage(Protocol):
    """The intact content of one file. counts: number of messages by (topic, type)."""

    counts: Counter[tuple[str, str]]

    def messages(self, topics: Collection[str]) -> Iterator[Salvaged]: ...

    def close(self) -> None: ...


def cdr_type(msgtype: str, encoding: str) -> str:
    """The type of a topic whose messages have this encoding: only CDR messages are ROS messages of that type."""
    return msgtype if encoding == "cdr" else f"{msgtype} in {encoding or 'no encoding'}"


def salvage(path: Path, note: Note) -> Salvage:
    """Scan a damaged .mcap or .db3 file once. note: called with a description of each damaged part.

    Raises McapDamage or SqliteDamage if nothing in it can be read.
    """
    return McapSalvage(path, note) if path.suffix == ".mcap" else SqliteSalvage(path, note)


def scan_topics(path: Path, note: Note, topics: Collection[str]) -> Iterator[Salvaged]:
    """The intact messages on `topics` of an .mcap file, without its index; see :func:`scan_mcap`."""
    for message in scan_mcap(path, note):
        if message.channel.topic in topics:
            yield Salvaged(message.channel.topic, _msgtype(message.channel), message.stamp_ns, message.data)


def _msgtype(channel: McapChannel) -> str:
    return cdr_type(channel.msgtype, channel.encoding)


class McapSalvage:
    """An MCAP file read without its index: scanned once to count the messages, and again to return them."""

    def __init__(self, path: Path, note: Note) -> None:
        self._path = path
        self._note = note
        self.counts = Counter((message.channel.topic, _msgtype(message.channel)) for message in scan_mcap(path, note))

    def messages(self, topics: Collection[str]) -> Iterator[Salvaged]:
        return scan_topics(self._path, self._note, topics)

    def close(self) -> None:
        pass


class SqliteSalvage:
    """An SQLite database, read page by page."""

    def __init__(self, path: Path, note: Note) -> None:
        self._note = note
        self._pages = Pages(path, note)
        self._rows = rows = Rows(self._pages, note)
        self.counts: Counter[tuple[str, str]] = Counter({(x.name, x.msgtype): 0 for x in rows.topics.values()})
        nameless: Counter[int] = Counter()
        for message in rows.messages:
            topic = rows.topics.get(message.topic)
            if topic is None:
                nameless[message.topic] += 1
            else:
                self.counts[topic.name, topic.msgtype] += 1
        for number, count in sorted(nameless.items()):
            note(f"{count} messages of topic number {number}, whose name is missing, are skipped")

    def messages(self, topics: Collection[str]) -> Iterator[Salvaged]:
        for row in self._rows.messages:
            topic = self._rows.topics.get(row.topic)
            if topic is not None and topic.name in topics:
                try:
                    data = self._rows.data(row)
                except BadRow as error:
                    self._note(f"message {row.number} on page {row.page}: {error}")
                else:
                    yield Salvaged(topic.name, topic.msgtype, row.stamp_ns, data)

    def close(self) -> None:
        self._pages.close()
