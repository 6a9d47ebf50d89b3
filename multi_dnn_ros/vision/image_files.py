"""Suffixes of image files, and checks of a JPEG or PNG before it is decoded: its size, and whether it is complete."""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from multi_dnn_ros.common.errors import FrameError

log = logging.getLogger(__name__)

#: Suffixes of image files, all of which OpenCV reads: those that are read from a folder of images.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
#: A progressive JPEG of a few kilobytes can require thousands of passes over the whole image; cameras use one, photos
#: about ten.
_MAX_SCANS = 64
#: Start-of-frame markers (ITU T.81 table B.1): C0 to CF without DHT, JPG and DAC.
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9


def natural_order(name: str) -> list[tuple[int, str]]:
    """Sort key: image_2 comes before image_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def image_files(folder: Path) -> list[Path]:
    """The files of a folder with an image's suffix, sorted by name. Raises OSError.

    Hidden ones are no images: a Mac leaves `._x.jpg` beside x.jpg. Folders are named in the log. A link to nowhere is
    listed, so that reading it names it.
    """
    visible = (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))
    named = [path for path in visible if path.suffix.lower() in IMAGE_SUFFIXES]
    if folders := [path.name for path in named if path.is_dir()]:
        log.warning("%s: not images but folders, and left out: %s", folder, ", ".join(folders))
    return [path for path in named if path.name not in folders]


class FileHeader(NamedTuple):
    """width, height: pixels."""

    width: int
    height: int


def is_jpeg(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a JPEG."""
    return head.startswith(_JPEG)


def is_16_bit_png(file: bytes) -> bool:
    """Whether a file that :func:`check_image_file` has accepted is a PNG of 16 bits per value (section 11.2.2)."""
    return file.startswith(_PNG) and file[24] == 16


def check_image_file(file: bytes, claimed_format: str, check_size: Callable[[int, int], None]) -> FileHeader:
    """The header, after `check_size(width, height)`. FrameError for a truncated or damaged file.

    PNG: all chunks are complete and their checksums correct (PNG specification, sections 5.3 and 11.2.2). JPEG: the
    segments up to the first scan are complete, and the end marker exists (ITU T.81, annex B); entropy-coded data has no
    checksum.
    """
    head = file[:8]
    if is_jpeg(head):
        return _check_jpeg(file, check_size)
    if head == _PNG:
        return _check_png(memoryview(file), check_size)
    raise FrameError(
        f"data ({len(file)} bytes, format {claimed_format[:40]!r}) begins with {head.hex(' ') or 'nothing'}; "
        "allowed: a JPEG or PNG file"
    )


def _check_jpeg(file: bytes, check_size: Callable[[int, int], None]) -> FileHeader:
    header: FileHeader | None = None
    position = 2
    while True:
        while file[position : position + 2] == b"\xff\xff":  # fill bytes before a marker are allowed
            position += 1
        if position + 4 > len(file) or file[position] != 0xFF:
            raise _truncated("JPEG", len(file), f"no marker at byte {position}")
        marker, length = file[position + 1], int.from_bytes(file[position + 2 : position + 4], "big")
        if length < 2 or position + 2 + length > len(file):
            raise _truncated("JPEG", len(file), f"the segment at byte {position} has {length} bytes")
        if marker in _START_OF_FRAME:
            if header is not None or length < 8:
                raise FrameError(f"data is a damaged JPEG: a frame header of {length} bytes at byte {position}")
            height, width = (int.from_bytes(file[position + at : position + at + 2], "big") for at in (5, 7))
            check_size(width, height)
            header = FileHeader(width, height)
        if marker == _START_OF_SCAN:
            break
        position += 2 + length
    if header is None:
        raise FrameError("data is a damaged JPEG: no frame header before the first scan")
    # In a scan every 0xFF is followed by 0x00 or a marker, so these two bytes can only be the end marker.
    if file.find(bytes((0xFF, _END_OF_IMAGE)), position) < 0:
        raise _truncated("JPEG", len(file), "no end marker")
    scans = file.count(bytes((0xFF, _START_OF_SCAN)), position)
    if scans > _MAX_SCANS:
        raise FrameError(f"data is a JPEG of {scans} scans; allowed: at most {_MAX_SCANS}")
    return header


def _check_png(file: memoryview, check_size: Callable[[int, int], None]) -> FileHeader:
    size: tuple[int, int] | None = None
    position = len(_PNG)
    while position + 12 <= len(file):
        length = int.from_bytes(file[position : position + 4], "big")
        kind, end = bytes(file[position + 4 : position + 8]), position + 12 + length
        if end > len(file):
            raise _truncated("PNG", len(file), f"chunk {kind!r} at byte {position} has {length} bytes")
        if zlib.crc32(file[position + 4 : end - 4]) != int.from_bytes(file[end - 4 : end], "big"):
            raise FrameError(f"data is a damaged PNG: wrong checksum of chunk {kind!r} at byte {position}")
        if size is None:
            if kind != b"IHDR" or length != 13:
                raise FrameError(
                    f"data is a damaged PNG: the first chunk is {kind!r} of {length} bytes; expected: IHDR of 13"
                )
            size = (
                int.from_bytes(file[position + 8 : position + 12], "big"),
                int.from_bytes(file[position + 12 : position + 16], "big"),
            )
            check_size(*size)
        if kind == b"IEND":
            return FileHeader(*size)
        position = end
    raise _truncated("PNG", len(file), "no end chunk")


def _truncated(kind: str, length: int, found: str) -> FrameError:
    return FrameError(f"data is a truncated {kind}: {length} bytes, {found}; allowed: a complete file")
