"""Bounded decompression: a few kilobytes of a hostile recording may decompress to terabytes.

The rosbags library decompresses everything before it checks the claimed size, and offers no hook. Importing this module
replaces its functions by bounded ones.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any, BinaryIO

import lz4.frame  # type: ignore[import-untyped]
import rosbags.rosbag2.storage_mcap

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: Maximum claimed size of a chunk or message; more is treated as damage. Recorders write chunks of about a MiB, plus at
#: most some tens of MiB for a camera image.
MAX_CHUNK_BYTES = 1 << 30
#: Limit for a storage file compressed as a whole, which is decompressed to the disk: this multiple of its size, or
#: _MIN_FILE_LIMIT_BYTES if that is more.
_MAX_FILE_RATIO = 100
_MIN_FILE_LIMIT_BYTES = 1 << 30
#: Errors of the decompressors on invalid data.
DECOMPRESSION_ERRORS = (zstd.ZstdError, RuntimeError, EOFError)


class TooLargeError(ValueError):
    """Compressed data is larger than it claims, claims more than is allowed, or has an unknown compression."""


def decompress_chunk(packed: bytes, size: int, compression: str) -> bytes:
    """The decompressed records of a chunk. size: the size that its header claims.

    compression: `zstd`, `lz4`, or empty for none. Raises TooLargeError, and DECOMPRESSION_ERRORS for damaged data.
    """
    if size > MAX_CHUNK_BYTES:
        raise TooLargeError(f"chunk claims {size} bytes; allowed: at most {MAX_CHUNK_BYTES}")
    if compression == "zstd":
        return _decompress(zstd.ZstdDecompressor(), packed, size)
    if compression == "lz4":
        return _decompress(lz4.frame.LZ4FrameDecompressor(), packed, size)
    if compression:
        raise TooLargeError(f"chunk compressed with {compression[:40]!r}; known: zstd, lz4 and none")
    return packed


def decompress_prefix(packed: bytes, size: int, compression: str) -> bytes:
    """Like :func:`decompress_chunk`, but for truncated data: as much of it as can be decompressed."""
    if size > MAX_CHUNK_BYTES:
        raise TooLargeError(f"chunk claims {size} bytes; allowed: at most {MAX_CHUNK_BYTES}")
    if compression == "zstd":
        return zstd.ZstdDecompressor().decompress(packed, size)
    if compression == "lz4":
        return bytes(lz4.frame.LZ4FrameDecompressor().decompress(packed, size))
    return packed[:size] if not compression else b""


def decompress_message(packed: bytes) -> bytes:
    """A message that a recorder compressed individually (zstd)."""
    return _decompress(zstd.ZstdDecompressor(), packed, MAX_CHUNK_BYTES)


class BoundedFile:
    """A storage file compressed as a whole (zstd), read incrementally up to its limit; a context manager."""

    def __init__(self, file: BinaryIO, mode: str) -> None:
        if mode != "rb":
            raise ValueError(f"mode is {mode!r}; allowed: 'rb'")
        size = os.fstat(file.fileno()).st_size
        self._left = max(_MAX_FILE_RATIO * size, _MIN_FILE_LIMIT_BYTES)
        self._limit = self._left
        self._file = zstd.ZstdFile(file, "rb")

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes, none at the end. Raises TooLargeError above the limit."""
        data: bytes = self._file.read(size if size > 0 else 1 << 20)
        self._left -= len(data)
        if self._left < 0:
            raise TooLargeError(f"storage file decompresses to more than {self._limit} bytes, the limit for its size")
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
        raise EOFError("compressed data is truncated")
    return data


def _patch_rosbags() -> None:
    library: Any = rosbags.rosbag2
    library.storage_mcap.DECOMPRESSORS = {
        name: partial(decompress_chunk, compression=name) for name in ("", "lz4", "zstd")
    }


_patch_rosbags()
