"""Suffixes of image files, and checks of a JPEG or PNG before it is decoded: its size, and whether it is complete."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from multi_dnn_ros.common.errors import FrameError

log = logging.getLogger(__name__)

#: Suffixes of image files, all of which OpenCV reads: those that are read from a folder of images.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
#: End marker of a JPEG (ITU T.81, annex B). In a scan every 0xFF is followed by 0x00 or a marker.
_END_OF_IMAGE, _SCAN = b"\xff\xd9", b"\xff\xda"
#: Maximum number of scans of a JPEG. Usual progressive ones have about ten; a small file of a thousand takes a minute.
_MAX_SCANS = 64


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


def is_16_bit_png(file: bytes) -> bool:
    """Whether a file that :func:`check_image_file` has accepted is a PNG of 16 bits per value (section 11.2.2)."""
    return file.startswith(_PNG) and file[24] == 16


def check_image_file(file: bytes, claimed_format: str, check_size: Callable[[int, int], None]) -> tuple[int, int]:
    """(width, height) from the header, after `check_size(width, height)`. FrameError for a truncated or damaged file.

    PNG: all chunks are complete and their checksums correct. JPEG: the segments up to the first scan are complete, and
    the end marker exists; entropy-coded data has no checksum.
    """
    is_png = file.startswith(_PNG)
    if not is_png and not file.startswith(_JPEG):
        raise FrameError(
            f"data ({len(file)} bytes, format {claimed_format[:40]!r}) begins with {file[:8].hex(' ') or 'nothing'}; "
            "allowed: a JPEG or PNG file"
        )
    stream = BytesIO(file)
    try:
        image = (PngImageFile if is_png else JpegImageFile)(stream)  # reads the header only
        size, begin_of_scan = image.size, stream.tell()
    except Exception as error:  # for damaged files Pillow raises errors of many kinds
        raise _damaged(file, str(error)) from None
    check_size(*size)
    if is_png:
        try:
            image.verify()
        except Exception as error:
            raise _damaged(file, str(error)) from None
    elif file.rfind(_END_OF_IMAGE, begin_of_scan) < 0:
        raise _damaged(file, "no end marker")
    elif (scans := 1 + file.count(_SCAN, begin_of_scan)) > _MAX_SCANS:
        raise FrameError(f"data is a JPEG of {scans} scans; allowed: at most {_MAX_SCANS}")
    return size


def _damaged(file: bytes, problem: str) -> FrameError:
    kind = "PNG" if file.startswith(_PNG) else "JPEG"
    return FrameError(f"data is a truncated or damaged {kind}: {len(file)} bytes, {problem}; allowed: a complete file")
