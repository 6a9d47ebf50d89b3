"""Reads a damaged MCAP file sequentially without its index: all intact messages, and a note about each damaged part.

A recorder writes the index last, so a recording that ended with a power loss has none, and the rosbags reader rejects
it. After an invalid record, the scan looks for the next valid one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from multi_dnn_ros.bags import mcap_records as records
from multi_dnn_ros.bags.decompression import MAX_CHUNK_BYTES
from multi_dnn_ros.bags.mcap_records import PREFIX_BYTES, Definitions, McapDamage, McapMessage

_KNOWN = range(records.HEADER, records.DATA_END + 1)
#: Opcodes from here on are private to applications.
_FIRST_PRIVATE = 0x80
#: An opcode of the data section, and a length below 4 GiB.
_CANDIDATE = re.compile(rb"(?=[\x03-\x07\x09\x0c\x0f][\s\S]{4}\x00{4})")
_BLOCK_BYTES = 1 << 20


def scan_mcap(path: Path, note: Callable[[str], None]) -> Iterator[McapMessage]:
    """Every intact message in file order, chunk by chunk (sorted by time within a chunk).

    note: called with a text for each damaged part: its offset, the error, and the number of lost messages if known. A
    chunk with a wrong checksum is skipped completely. If the file ends inside a chunk, the messages before its end are
    returned unverified.
    Raises McapDamage if the file does not start with MCAP's magic bytes.
    """
    with path.open("rb") as file:
        yield from _Scan(file, path.stat().st_size, note).messages()


class _Scan:
    def __init__(self, file: BinaryIO, size: int, note: Callable[[str], None]) -> None:
        self._file = file
        self._size = size
        self._note = note
        self._definitions = Definitions()
        self._lost_chunk: tuple[int, str] | None = None  # offset and error of a chunk whose indexes are being read
        self._lost_messages = 0

    def messages(self) -> Iterator[McapMessage]:
        self._file.seek(0)
        if self._file.read(len(records.MAGIC)) != records.MAGIC:
            raise McapDamage("not an MCAP file: wrong magic bytes")
        try:
            self._definitions = records.read_summary(self._file, self._size) or self._definitions
        except McapDamage as error:
            self._note(str(error))
        at = len(records.MAGIC)
        while True:
            opcode, length = self._prefix(at)
            end = at + PREFIX_BYTES + length
            if opcode == records.DATA_END and length == 4:
                break
            fits = self._is_record_start(at) and end <= self._size
            if not fits and self._is_chunk(at):  # its lengths agree, so the file ends inside this chunk
                yield from self._truncated_chunk(at)
                self._note(f"truncated at byte {at} of {self._size}, in a chunk")
                break
            # A wrong length would skip the following records, so look for one inside this record.
            if not fits or not (opcode == records.CHUNK or self._is_record_start(end)):
                found = self._next_record(at + 1)
                if not fits and found is None:
                    self._note(f"truncated at byte {at} of {self._size}: no complete record follows")
                    break
                if found is not None and (not fits or found < end):
                    self._note(f"no record at byte {at}: {found - at} bytes are skipped")
                    at = found
                    continue
            yield from self._record(at, opcode, self._read(at + PREFIX_BYTES, length))
            at = end
        self._report_lost_chunk()

    def _record(self, at: int, opcode: int, body: bytes) -> Iterator[McapMessage]:
        try:
            if opcode == records.MESSAGE_INDEX:
                self._lost_messages += records.index_count(body)
                return
            self._report_lost_chunk()
            if opcode == records.CHUNK:
                yield from self._chunk(at, body)
            elif opcode == records.MESSAGE:
                yield self._definitions.message(body)
            else:
                self._definitions.add(opcode, body)
        except McapDamage as error:
            self._note(f"record at byte {at}: {error}")

    def _chunk(self, at: int, body: bytes) -> Iterator[McapMessage]:
        try:
            content = records.chunk(body).records()
        except McapDamage as error:
            self._lost_chunk = at, str(error)
            self._lost_messages = 0
            return
        yield from self._chunk_messages(f"chunk at byte {at}", content, complete=True)

    def _truncated_chunk(self, at: int) -> Iterator[McapMessage]:
        chunk = records.chunk(self._read(at + PREFIX_BYTES, MAX_CHUNK_BYTES))
        yield from self._chunk_messages(f"chunk at byte {at}", chunk.first_records(), complete=False)

    def _chunk_messages(self, where: str, content: bytes, *, complete: bool) -> Iterator[McapMessage]:
        """The messages in a chunk's records, by time. where: the chunk, for notes. complete: the file does not end
        inside the chunk.
        """
        messages = []
        at = 0
        while at < len(content):
            if at + PREFIX_BYTES > len(content):
                end = len(content) + 1
            else:
                opcode, length = struct.unpack_from("<BQ", content, at)
                end = at + PREFIX_BYTES + length
            if end > len(content):
                if complete:
                    self._note(f"{where}: its record at {at} ends after the end of the chunk")
                break
            body = content[at + PREFIX_BYTES : end]
            try:
                if opcode == records.MESSAGE:
                    messages.append(self._definitions.message(body))
                else:
                    self._definitions.add(opcode, body)
            except McapDamage as error:
                self._note(f"{where}: its record at {at}: {error}")
            at = end
        yield from sorted(messages, key=lambda message: message.stamp_ns)

    def _report_lost_chunk(self) -> None:
        """Note a damaged chunk, and how many messages it held according to the indexes that follow it."""
        if self._lost_chunk is not None:
            at, why = self._lost_chunk
            lost = f"; {self._lost_messages} messages are lost" if self._lost_messages else ""
            self._note(f"chunk at byte {at}: {why}{lost}")
        self._lost_chunk = None
        self._lost_messages = 0

    # -- bytes

    def _read(self, at: int, length: int) -> bytes:
        self._file.seek(at)
        return self._file.read(length)

    def _prefix(self, at: int) -> tuple[int, int]:
        """Opcode and length; opcode 0, which is invalid, at the end of the file."""
        head = self._read(at, PREFIX_BYTES)
        if len(head) < PREFIX_BYTES:
            return 0, 0
        opcode, length = struct.unpack("<BQ", head)
        return opcode, length

    def _is_record_start(self, at: int) -> bool:
        """Whether a record can start at this offset, or the file ends there."""
        opcode, length = self._prefix(at)
        if not opcode:
            return at + PREFIX_BYTES > self._size
        return (opcode in _KNOWN or opcode >= _FIRST_PRIVATE) and length <= MAX_CHUNK_BYTES

    def _is_chunk(self, at: int) -> bool:
        """Whether a chunk header with consistent lengths starts at this offset."""
        opcode, length = self._prefix(at)
        try:
            head = records.chunk(self._read(at + PREFIX_BYTES, min(length, 64)))
        except McapDamage:
            return False
        names = ("", "lz4", "zstd")
        # The other fields of the header have 40 bytes.
        expected_bytes = length - 40 - len(head.compression)
        return opcode == records.CHUNK and head.compression in names and head.stored_bytes == expected_bytes

    def _next_record(self, at: int) -> int | None:
        """Offset of the next record whose body matches the layout of its opcode."""
        while at < self._size - PREFIX_BYTES:
            block = self._read(at, _BLOCK_BYTES + PREFIX_BYTES)
            for candidate in _CANDIDATE.finditer(block):
                if self._is_plausible(at + candidate.start()):
                    return at + candidate.start()
            at += _BLOCK_BYTES
        return None

    def _is_plausible(self, at: int) -> bool:
        """Whether a record whose body matches the layout of its opcode starts at this offset."""
        opcode, length = self._prefix(at)
        end = at + PREFIX_BYTES + length
        if length > MAX_CHUNK_BYTES or end > self._size:
            return False
        if opcode == records.DATA_END:
            return length == 4 and self._prefix(end)[0] in (records.FOOTER, records.SCHEMA, records.CHANNEL, 8, 10, 11)
        try:
            if opcode == records.CHUNK:
                return self._is_chunk(at)
            if length > _BLOCK_BYTES and opcode != records.MESSAGE:
                return False
            body = self._read(at + PREFIX_BYTES, min(length, _BLOCK_BYTES))
            if opcode == records.SCHEMA:
                return bool(records.schema(body)[1])
            if opcode == records.CHANNEL:
                return records.channel(body)[2].startswith("/")
            if opcode == records.MESSAGE_INDEX:
                return records.index_count(body) > 0
            if opcode == records.MESSAGE:
                self._definitions.message(body)
                return self._is_record_start(end)
        except McapDamage:
            pass
        return False
