"""The pages of a possibly damaged SQLite database file, combined with its logs.

A write-ahead log (`-wal`) holds newer versions of pages, a rollback journal (`-journal`) the versions from before an
unfinished transaction. Both are only read here; SQLite itself would write into the folder to apply them.
Source: https://www.sqlite.org/fileformat2.html, sections 1 to 4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

MAGIC = b"SQLite format 3\0"
_WAL_MAGIC = (0x377F0682, 0x377F0683)  # for checksums over little-endian, big-endian words
_JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES = 32, 24
_DEFAULT_PAGE_BYTES = 4096


class SqliteDamage(ValueError):
    """The file is not an SQLite database, or its header is invalid."""


class Pages:
    """The pages of `path`, numbered from 1; a context manager.

    note: receives damage of the file as a whole or of its log. Raises SqliteDamage.
    """

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        self._note = note
        self._file: BinaryIO = path.open("rb")
        self._log: BinaryIO | None = None
        self._in_log: dict[int, int] = {}  # offset in the log by page number
        try:
            self._open(path)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path) -> None:
        self._file_bytes = path.stat().st_size
        header = self._file.read(100)
        wal, journal = (path.with_name(f"{path.name}-{kind}") for kind in ("wal", "journal"))
        header_pages = 0
        if header.startswith(MAGIC) and len(header) == 100:
            (size,) = struct.unpack_from(">H", header, 16)
            self.page_bytes = 65536 if size == 1 else size
            self.usable_bytes = self.page_bytes - header[20]
            changes, header_pages, valid_for = (struct.unpack_from(">I", header, at)[0] for at in (24, 28, 92))
            if changes != valid_for:  # last written by an old SQLite version, which does not update the number of pages
                header_pages = 0
        elif _has_data(wal):
            self.page_bytes = self.usable_bytes = _wal_page_bytes(wal)
        elif header[:1] == b"\0" and self._file_bytes > _DEFAULT_PAGE_BYTES:
            self._note("page 1 is damaged: the file has no header; a page size of 4096 bytes is assumed")
            self.page_bytes = self.usable_bytes = _DEFAULT_PAGE_BYTES
        else:
            raise SqliteDamage("not an SQLite database: wrong magic bytes")
        if self.page_bytes < 512 or self.page_bytes & (self.page_bytes - 1) or self.usable_bytes < 480:
            raise SqliteDamage(f"invalid page size: {self.page_bytes} bytes, of which {self.usable_bytes} are usable")
        self._pages_in_use: int | None = None  # according to a log
        if _has_data(wal):
            self._read_wal(wal)
        elif _has_data(journal):
            self._read_journal(journal)
        #: The highest possible page number.
        self.count = max(-(-self._file_bytes // self.page_bytes), max(self._in_log, default=0))
        if self._pages_in_use is not None:
            self.count = min(self.count, self._pages_in_use)
        self._note_truncation(header_pages if self._pages_in_use is None else self._pages_in_use)

    def _note_truncation(self, pages: int) -> None:
        """Note if the file and its log hold fewer than `pages` pages."""
        complete = self._file_bytes // self.page_bytes
        in_log = sum(1 for number in self._in_log if complete < number <= pages)
        if pages > complete + in_log:
            self._note(f"truncated at byte {self._file_bytes}: {complete + in_log} of {pages} pages are complete")

    def numbers(self) -> Iterator[int]:
        """The numbers of the pages that exist, ascending; not all up to `count`: a damaged log may claim billions."""
        in_file = min(-(-self._file_bytes // self.page_bytes), self.count)
        yield from range(1, in_file + 1)
        yield from sorted(number for number in self._in_log if in_file < number <= self.count)

    def page(self, number: int) -> bytes:
        """A page; truncated or empty at the end of the file."""
        if number in self._in_log:
            assert self._log is not None
            self._log.seek(self._in_log[number])
            return self._log.read(self.page_bytes)
        if not 1 <= number <= self.count:
            return b""
        self._file.seek((number - 1) * self.page_bytes)
        return self._file.read(self.page_bytes)

    def close(self) -> None:
        self._file.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Pages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read_wal(self, path: Path) -> None:
        """Read the pages of committed transactions, up to the first frame with a wrong salt or checksum."""
        self._log = log = path.open("rb")
        header = log.read(_WAL_HEADER_BYTES)
        if len(header) < _WAL_HEADER_BYTES:
            self._note(f"{path.name}: truncated in its header")
            return
        magic, _, page_bytes, _ = struct.unpack_from(">4I", header)
        if magic not in _WAL_MAGIC or page_bytes != self.page_bytes:
            self._note(f"{path.name}: not a write-ahead log of this database")
            return
        byte_order = "<" if magic == _WAL_MAGIC[0] else ">"
        sums = _checksum(header[:24], (0, 0), byte_order)
        if sums != struct.unpack_from(">2I", header, 24):
            self._note(f"{path.name}: wrong checksum of its header")
            return
        at, committed = _WAL_HEADER_BYTES, _WAL_HEADER_BYTES
        transaction: dict[int, int] = {}
        reason = ""
        while True:
            frame = log.read(_FRAME_HEADER_BYTES)
            content = log.read(self.page_bytes)
            if not frame:
                break
            if len(content) < self.page_bytes:
                reason = f"truncated at byte {at}"
                break
            number, size_after = struct.unpack_from(">2I", frame)
            if frame[8:16] != header[16:24]:
                break  # frames of an earlier use of the log
            sums = _checksum(content, _checksum(frame[:8], sums, byte_order), byte_order)
            if sums != struct.unpack_from(">2I", frame, 16):
                reason = f"wrong checksum of the frame at byte {at}"
                break
            transaction[number] = at + _FRAME_HEADER_BYTES
            at += _FRAME_HEADER_BYTES + self.page_bytes
            if size_after:
                self._in_log.update(transaction)
                self._pages_in_use = size_after
                transaction.clear()
                committed = at
        if reason or transaction:
            reason = reason or f"no commit after byte {committed}"
            self._note(f"{path.name}: {reason}; the unfinished transaction ({len(transaction)} pages) is ignored")

    def _read_journal(self, path: Path) -> None:
        """Read the pages from before an unfinished transaction, so that the pages it wrote are ignored."""
        self._log = log = path.open("rb")
        header = log.read(28)
        if len(header) < 28 or not header.startswith(_JOURNAL_MAGIC):
            return  # the transaction is finished: SQLite has overwritten the header
        records, nonce, pages_before, sector_bytes, page_bytes = struct.unpack_from(">5I", header, 8)
        if page_bytes != self.page_bytes:
            self._note(f"{path.name}: not a rollback journal of this database")
            return
        at = sector_bytes
        available = (path.stat().st_size - at) // (page_bytes + 8)
        restored = 0
        for _ in range(min(records, available) if records != 0xFFFFFFFF else available):
            log.seek(at)
            record = log.read(page_bytes + 8)
            (number,) = struct.unpack_from(">I", record)
            content = record[4:-4]
            check = nonce + sum(content[x] for x in range(page_bytes - 200, 0, -200))
            if check & 0xFFFFFFFF != struct.unpack_from(">I", record, page_bytes + 4)[0]:
                break
            self._in_log.setdefault(number, at + 4)
            restored += 1
            at += page_bytes + 8
        self._pages_in_use = pages_before
        self._note(f"{path.name}: the unfinished transaction is ignored ({restored} pages restored)")


def _has_data(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _wal_page_bytes(path: Path) -> int:
    with path.open("rb") as file:
        header = file.read(_WAL_HEADER_BYTES)
    if len(header) < _WAL_HEADER_BYTES or struct.unpack_from(">I", header)[0] not in _WAL_MAGIC:
        raise SqliteDamage("not an SQLite database, and its -wal file is not a write-ahead log")
    return int(struct.unpack_from(">I", header, 8)[0])


def _checksum(data: bytes, sums: tuple[int, int], byte_order: str) -> tuple[int, int]:
    first, second = sums
    values = struct.unpack(f"{byte_order}{len(data) // 4}I", data)
    for even, odd in zip(values[::2], values[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
