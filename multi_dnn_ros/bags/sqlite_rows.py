"""The rows of a damaged rosbag2 database: every readable table leaf page, even if the tree does not reference it.

Python's SQLite has no recovery (the `sqlite3` program's `.recover` is not part of the library), and its queries stop at
the first bad page. Rows are recognized by rosbag2's layout: a message is (id, topic, time, bytes), a topic (id, name,
type, `cdr`, ...). Only complete rows are used. SQLite pages have no checksums, so an overwritten page inside an image
is not detected.
Source: https://www.sqlite.org/fileformat2.html, sections 1.5 to 2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from multi_dnn_ros.bags.decompression import MAX_CHUNK_BYTES
from multi_dnn_ros.bags.sqlite_pages import Pages

_TABLE_LEAF = 0x0D
#: Maximum number of notes about single messages; further ones are only counted.
_MAX_NOTES = 20
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}


class BadRow(ValueError):
    """A cell is not a row, or the row is incomplete; the message says why."""


class TopicRow(NamedTuple):
    """A row of the table `topics`."""

    number: int
    name: str
    msgtype: str


class MessageRow(NamedTuple):
    """A row of the table `messages`, without its bytes. page, offset: position of its cell."""

    stamp_ns: int
    number: int
    topic: int
    page: int
    offset: int


class _Cell(NamedTuple):
    """A row of a table leaf.

    payload_bytes: size of its record. local: the part of the record in the page. overflow: page of the rest, 0 if none.
    """

    rowid: int
    payload_bytes: int
    local: bytes
    overflow: int


class Rows:
    """Content of the pages: topics by number, and the complete messages, ordered by time.

    note: receives a line for each incomplete message, up to a limit, and one for gaps in the numbering.
    """

    def __init__(self, pages: Pages, note: Callable[[str], None]) -> None:
        self._pages = pages
        self._note = note
        self.topics: dict[int, TopicRow] = {}
        messages: dict[int, MessageRow] = {}
        broken: dict[int, str] = {}
        free = self._free_pages()
        for number in pages.numbers():
            if number not in free:
                self._read_leaf(number, messages, broken)
        self.messages = sorted(messages.values())
        self._note_lost(messages.keys(), {row: why for row, why in broken.items() if row not in messages})

    def data(self, row: MessageRow) -> bytes:
        """The serialized bytes of a message. Raises BadRow if they can no longer be read from the file."""
        page = self._pages.page(row.page)
        values = _values(self._payload(_cell(page, row.offset, self._pages.usable_bytes)))
        assert isinstance(values[3], bytes)
        return values[3]

    def _read_leaf(self, number: int, messages: dict[int, MessageRow], broken: dict[int, str]) -> None:
        page = self._pages.page(number)
        for offset in _cell_offsets(page, 100 if number == 1 else 0):
            try:
                cell = _cell(page, offset, self._pages.usable_bytes)
                shape = _shape(cell.local)
            except BadRow:
                continue  # a page of another type, or a row without a complete header
            if shape[:1] == ["null"] and shape[1:] == ["integer", "integer", "bytes"]:
                try:
                    self._check_complete(cell)
                    _, topic, stamp_ns = _values(cell.local, 3)
                except BadRow as error:
                    broken.setdefault(cell.rowid, f"message {cell.rowid} on page {number}: {error}")
                    continue
                messages.setdefault(cell.rowid, MessageRow(stamp_ns, cell.rowid, topic, number, offset))
            elif shape[:4] == ["null", "text", "text", "text"]:
                try:
                    _, name, msgtype, encoding, *_ = _values(self._payload(cell))
                except BadRow:
                    continue
                if encoding == "cdr" and name.startswith("/") and "/" in msgtype:
                    self.topics.setdefault(cell.rowid, TopicRow(cell.rowid, name, msgtype))

    def _payload(self, cell: _Cell) -> bytes:
        parts = [cell.local]
        parts += self._overflow(cell, self._pages.page)
        return b"".join(parts)

    def _check_complete(self, cell: _Cell) -> None:
        """Raise BadRow unless all pages of the row exist."""
        for _ in self._overflow(cell, self._pages.page):
            pass

    def _overflow(self, cell: _Cell, page_of: Callable[[int], bytes]) -> Iterator[bytes]:
        left = cell.payload_bytes - len(cell.local)
        number = cell.overflow
        while left > 0:
            if not number:
                raise BadRow(f"the number of its next page is 0, {left} bytes before the row's end")
            page = page_of(number)
            size = min(left, self._pages.usable_bytes - 4)
            if len(page) < 4 + size:
                where = f"byte {(number - 1) * self._pages.page_bytes}"
                raise BadRow(f"its page {number} ({where}) is missing, {left} bytes before the row's end")
            (following,) = struct.unpack_from(">I", page)
            yield page[4 : 4 + size]
            left -= size
            if (following == 0) != (left == 0):
                raise BadRow(f"its page {number} is damaged, {left} bytes before the row's end")
            number = following

    def _free_pages(self) -> set[int]:
        """Pages on the freelist; their old content must be ignored."""
        free: set[int] = set()
        header = self._pages.page(1)[:100]
        number = struct.unpack_from(">I", header, 32)[0] if len(header) == 100 else 0
        while 1 < number <= self._pages.count and number not in free:
            free.add(number)
            trunk = self._pages.page(number)
            if len(trunk) < self._pages.page_bytes:
                break
            number, count = struct.unpack_from(">2I", trunk)
            count = min(count, self._pages.usable_bytes // 4 - 2)
            free.update(struct.unpack_from(f">{count}I", trunk, 8))
        return free

    def _note_lost(self, found: Any, broken: dict[int, str]) -> None:
        for why in list(broken.values())[:_MAX_NOTES]:
            self._note(why)
        if len(broken) > _MAX_NOTES:
            self._note(f"{len(broken) - _MAX_NOTES} more messages are incomplete")
        known = found | broken.keys()
        if known and (missing := max(known) - len(known)) > 0:
            self._note(f"{missing} of the messages 1 to {max(known)} are missing with the pages that held them")


def _cell_offsets(page: bytes, start: int) -> list[int]:
    """Offsets of the rows of a table leaf; none for other pages."""
    if len(page) < start + 8 or page[start] != _TABLE_LEAF:
        return []
    (count,) = struct.unpack_from(">H", page, start + 3)
    first = start + 8
    if first + 2 * count > len(page):
        return []
    return [offset for offset in struct.unpack_from(f">{count}H", page, first) if offset >= first + 2 * count]


def _cell(page: bytes, offset: int, usable: int) -> _Cell:
    size, at = _varint(page, offset)
    rowid, at = _varint(page, at)
    if not 0 < size <= MAX_CHUNK_BYTES:
        raise BadRow(f"row of {size} bytes")
    local = size
    if size > usable - 35:
        min_local = (usable - 12) * 32 // 255 - 23
        local = min_local + (size - min_local) % (usable - 4)
        if local > usable - 35:
            local = min_local
    end = at + local
    if end + (4 if local < size else 0) > len(page):
        raise BadRow("row after the end of the page")
    overflow = struct.unpack_from(">I", page, end)[0] if local < size else 0
    return _Cell(rowid, size, page[at:end], overflow)


def _columns(record: bytes) -> tuple[list[int], int]:
    """Serial types of the columns, and the offset of the first value."""
    header_bytes, at = _varint(record, 0)
    if not at <= header_bytes <= len(record):
        raise BadRow("header longer than the record")
    kinds = []
    while at < header_bytes:
        kind, at = _varint(record, at)
        kinds.append(kind)
    if at != header_bytes:
        raise BadRow("header of a wrong length")
    return kinds, at


def _shape(record: bytes) -> list[str]:
    """Type of each column: null, integer, bytes, text or other."""
    return [
        "null" if kind == 0 else "integer" if kind in _INTEGER_BYTES else _long_kind(kind)
        for kind in _columns(record)[0]
    ]


def _long_kind(kind: int) -> str:
    if kind < 12:
        return "other"
    return "text" if kind % 2 else "bytes"


def _values(record: bytes, count: int | None = None) -> list[Any]:
    """The first `count` values of a record (None: all)."""
    kinds, at = _columns(record)
    values: list[Any] = []
    for kind in kinds[:count]:
        if kind == 0:
            values.append(None)
            continue
        if kind in _INTEGER_BYTES:
            size = _INTEGER_BYTES[kind]
            values.append(int.from_bytes(record[at : at + size], "big", signed=True) if size else kind - 8)
        elif kind >= 12:
            size = (kind - 12) // 2
            data = record[at : at + size]
            try:
                values.append(data.decode() if kind % 2 else data)
            except UnicodeDecodeError as error:
                raise BadRow(str(error)) from error
        else:
            raise BadRow(f"column of kind {kind}")
        at += size
        if at > len(record):
            raise BadRow("value after the end of the record")
    return values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for count in range(9):
        if at + count >= len(data):
            raise BadRow("number after the end of the data")
        byte = data[at + count]
        if count == 8:
            value = value << 8 | byte
            return value - (1 << 64) if value >> 63 else value, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + count + 1
    raise AssertionError("a varint has nine bytes at most")
