"""Writes pictures to a video file, or as PNG files to a folder. Does not import ROS."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common.atomic_files import atomic_write, temporary_path

Picture = npt.NDArray[np.uint8]

_MIN_HZ, _MAX_HZ = 1.0, 60.0


class OverlayFileError(ValueError):
    """Pictures cannot be written; the message names the file and the reason."""


def check_new_overlay(path: Path) -> None:
    """Raise OverlayFileError unless OverlayFiles can create `path`: its name is allowed, and nothing has it."""
    if path.exists():
        raise OverlayFileError(f"{path} already exists; nothing is overwritten")
    if path.suffix not in ("", ".mp4"):
        raise OverlayFileError(f"overlay {path}: allowed: a name that ends in .mp4, or a folder")


class AtomicWriter:
    """A file that is written in steps and gets its name at the end.

    As a context manager it closes the file at the end of the block, or discards it if the block raises.
    """

    def close(self) -> None:
        """Finish the file and give it its name."""
        raise NotImplementedError

    def discard(self) -> None:
        """Close without a result."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        (self.close if kind is None else self.discard)()


class OverlayFiles(AtomicWriter):
    """Writes pictures in order; a context manager.

    path: a file that ends in .mp4 (MPEG-4 part 2, which all OpenCV wheels can encode), or a folder for PNG files. It
    must not exist. A video has the size of its first picture and the rate of its first two stamps. It is written
    atomically.
    """

    def __init__(self, path: Path) -> None:
        check_new_overlay(path)
        self.path = path
        self.count = 0
        self._is_video = path.suffix == ".mp4"
        self._video: cv2.VideoWriter | None = None
        self._first: tuple[int, Picture] | None = None  # kept until the second picture, which determines the rate
        self._size = (0, 0)
        self._partial = temporary_path(path)
        (path.parent if self._is_video else path).mkdir(parents=True, exist_ok=True)

    def write(self, picture: Picture, stamp_ns: int) -> None:
        """Add a picture, (H, W, 3) uint8 RGB. stamp_ns: its time stamp in nanoseconds."""
        self.count += 1
        if not self._is_video:
            save_picture(self.path / f"{self.count - 1:06d}.png", picture)
        elif self._video is not None:
            self._encode(picture)
        elif self._first is None:
            self._first = (stamp_ns, picture)
        else:
            (earlier_ns, earlier), self._first = self._first, None
            interval_s = max(stamp_ns - earlier_ns, 1) / 1e9
            self._start(earlier, min(max(1.0 / interval_s, _MIN_HZ), _MAX_HZ))
            self._encode(earlier)
            self._encode(picture)

    def close(self) -> None:
        """Finish the file. OverlayFileError if it is incomplete, for example because the disk is full."""
        if self._first is not None:
            (_, picture), self._first = self._first, None
            self._start(picture, _MIN_HZ)
            self._encode(picture)
        if self._video is None:
            return
        try:
            self._release()
            # OpenCV's writer does not report a full disk: check that the file can be opened and is complete.
            check = cv2.VideoCapture(str(self._partial))
            written = int(check.get(cv2.CAP_PROP_FRAME_COUNT)) if check.isOpened() else 0
            check.release()
            if written != self.count:
                raise OverlayFileError(
                    f"video {self.path} cannot be written: it has {written} of {self.count} pictures; is the disk full?"
                )
            if self.path.exists():
                raise OverlayFileError(f"{self.path} already exists; nothing is overwritten")
            self._partial.rename(self.path)
        finally:
            self._partial.unlink(missing_ok=True)

    def discard(self) -> None:
        """Close without a video; pictures in a folder stay. An empty folder is removed, so that the next attempt can
        create it.
        """
        self._first = None
        self._release()
        self._partial.unlink(missing_ok=True)
        if not self._is_video:
            with suppress(OSError):  # not empty, or gone
                self.path.rmdir()

    def _release(self) -> None:
        if self._video is not None:
            self._video.release()
            self._video = None

    def _start(self, picture: Picture, rate_hz: float) -> None:
        self._size = (picture.shape[1], picture.shape[0])
        self._video = cv2.VideoWriter(str(self._partial), cv2.VideoWriter.fourcc(*"mp4v"), rate_hz, self._size)
        if not self._video.isOpened():
            raise OverlayFileError(f"video {self.path} cannot be written")

    def _encode(self, picture: Picture) -> None:
        assert self._video is not None
        if (picture.shape[1], picture.shape[0]) != self._size:
            picture = np.asarray(cv2.resize(picture, self._size), np.uint8)
        self._video.write(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))


def save_picture(path: Path, picture: Picture) -> None:
    """Write a picture, (H, W, 3) uint8 RGB, atomically in the format of the file's suffix. Parent folders are created.

    Raises OverlayFileError.
    """
    done, data = cv2.imencode(path.suffix, cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    if not done:
        raise OverlayFileError(f"picture {path} cannot be encoded")
    try:
        with atomic_write(path) as temporary:
            temporary.write_bytes(data.tobytes())
    except OSError as error:
        raise OverlayFileError(f"picture {path} cannot be written: {error.strerror}") from error
