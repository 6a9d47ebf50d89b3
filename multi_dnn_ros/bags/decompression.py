"""Decompression that stops at a limit: a few kilobytes of a hostile recording can stand for terabytes.

The rosbags library inflates all there is before it looks at the size that was claimed, and offers no hook; importing
this module puts the bounded functions in the place of its own.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any, BinaryIO

import lz4.frame  # type: ignore[import-untyped]
import rosbags.rosbag2.reader
import rosbags.rosbag2.storage_mcap

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: A chunk or message that claims more than this is damage, not data: recorders write chunks of about a MiB, a camera
#: image at most some tens of MiB more.
MAX_CHUNK_BYTES = 1 << 30
#: A storage file compressed as a whole goes to the disk: up to so many times its size, or this size if that is more.
_MAX_FILE_RATIO = 100
_MIN_FILE_LIMIT_BYTES = 1 << 30
#: What the decompressors raise for bytes that are no such frame.
DECOMPRESSION_ERRORS = (zstd.ZstdError, RuntimeError, EOFError)


class TooLargeError(ValueError):
    """Compressed data holds more than it claims, or claims more than is allowed."""


def decompress_chunk(packed: bytes, size: int, compression: str) -> bytes:
    """A chunk's records, at most `size` bytes, which is what its header claims.

    compression: `zstd`, `lz4`, or empty for none. Raises TooLargeError, and DECOMPRESSION_ERRORS for damaged data.
    """
    if size > MAX_CHUNK_BYTES:
        raise TooLargeError(f"chunk claims {size} bytes; allowed: at most {MAX_CHUNK_BYTES}")
    if compression == "zstd":
        return _decompress(zstd.ZstdDecompressor(), packed, size)
    if compression == "lz4":
        return _decompress(lz4.frame.LZ4FrameDecompressor(), packed, size)
    if compression:
        raise TooLargeError(f"chunk compressed with {compression[:40]!r}; known are zstd, lz4 and none")
    return packed


def decompress_prefix(packed: bytes, size: int, compression: str) -> bytes:
    """As :func:`decompress_chunk` for data that is cut short: as much of it as there is."""
    if size > MAX_CHUNK_BYTES:
        raise TooLargeError(f"chunk claims {size} bytes; allowed: at most {MAX_CHUNK_BYTES}")
    if compression == "zstd":
        return zstd.ZstdDecompressor().decompress(packed, size)
    if compression == "lz4":
        return bytes(lz4.frame.LZ4FrameDecompressor().decompress(packed, size))
    return packed[:size] if not compression else b""


def decompress_message(packed: bytes) -> bytes:
    """A message that a recorder compressed by itself (zstd)."""
    return _decompress(zstd.ZstdDecompressor(), packed, MAX_CHUNK_BYTES)


class BoundedFile:
    """A storage file compressed as a whole (zstd), read in pieces until its limit; a context manager."""

    def __init__(self, file: BinaryIO, mode: str) -> None:
        if mode != "rb":
            raise ValueError(f"mode is {mode!r}; allowed: 'rb'")
        size = os.fstat(file.fileno()).st_size
        self._left = max(_MAX_FILE_RATIO * size, _MIN_FILE_LIMIT_BYTES)
        self._limit = self._left
        self._file = zstd.ZstdFile(file, "rb")

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, none at the end; TooLargeError when the limit is passed."""
        data: bytes = self._file.read(size if size > 0 else 1 << 20)
        self._left -= len(data)
        if self._left < 0:
            raise TooLargeError(f"storage file holds more than {self._limit} bytes, {_MAX_FILE_RATIO} times its size")
        return data

    def __enter__(self) -> BoundedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _decompress(
    decompressor: zstd.ZstdDecompressor | lz4.frame.LZ4FrameDecompressor, packed: bytes, limit: int
) -> bytes:
    data: bytes = decompressor.decompress(packed, limit + 1)
    if len(data) > limit:
        raise TooLargeError(f"compressed data holds more than the {limit} bytes it claims")
    if not decompressor.eof:
        raise EOFError("compressed data is cut short")
    return data


def _bound_rosbags() -> None:
    library: Any = rosbags.rosbag2
    library.storage_mcap.DECOMPRESSORS = {
        name: partial(decompress_chunk, compression=name) for name in ("", "lz4", "zstd")
    }
    library.reader.zstd = SimpleNamespace(decompress=decompress_message, open=BoundedFile)


_bound_rosbags()
