"""Image sources: a video, a folder of images, a V4L2 device, or the generated road."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.camera.source import Source, SourceError, SourceImage
from multi_dnn_ros.common.frame_error import FrameError
from multi_dnn_ros.common.natural_order import natural_order
from multi_dnn_ros.vision.image_files import IMAGE_SUFFIXES, check_image_file, image_files

_MAX_PIXELS = 1 << 27


class VideoSource:
    """A video file, read by OpenCV. count: number of frames according to its header, 0 if unknown."""

    live = False

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.notes: list[str] = []
        self._path = path
        capture = self._open()
        rate_hz = float(capture.get(cv2.CAP_PROP_FPS))
        self.rate_hz = rate_hz if 0.0 < rate_hz < 1000.0 else None
        self.count = max(0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
        readable, _ = capture.read()
        capture.release()
        if not readable:
            raise SourceError(f"video {path} is broken: its first frame cannot be decoded")

    def items(self) -> Iterator[SourceImage]:
        capture = self._open()
        count = 0
        try:
            while True:
                readable, bgr = capture.read()
                if not readable:
                    break
                count += 1
                yield SourceImage(_rgb(bgr))
        finally:
            capture.release()
        # Containers may overstate the count by a frame or two; a larger difference is a truncated file.
        if count < self.count - 2:
            note = f"video {self._path} is cut short: {count} of {self.count} frames could be decoded"
            if note not in self.notes:
                self.notes.append(note)

    def _open(self) -> cv2.VideoCapture:
        capture = cv2.VideoCapture(str(self._path))
        if not capture.isOpened():
            raise SourceError(f"video {self._path} cannot be opened: not a video format that OpenCV supports")
        return capture


class ImageSource:
    """One image, or the images of a folder in natural order of their names (frame9 before frame10). Those of a folder
    that cannot be read are left out, and named in the notes.

    count: number of images.
    """

    live = False
    rate_hz: float | None = None

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.notes: list[str] = []
        self._folder = path if path.is_dir() else None
        files = image_files(path) if self._folder else [path]
        if not files:
            raise SourceError(f"folder {path} holds no image ({', '.join(IMAGE_SUFFIXES)})")
        self.count = len(files)
        self._files = sorted(files, key=lambda file: natural_order(file.name))

    def items(self) -> Iterator[SourceImage]:
        for file in self._files:
            try:
                yield SourceImage(_rgb(_read_image(file)))
            except SourceError as error:
                if self._folder is None:
                    raise
                if str(error) not in self.notes:  # of an earlier loop
                    self.notes.append(str(error))


def _read_image(file: Path) -> npt.NDArray[np.uint8]:
    """An image file as BGR. Raises SourceError, which names it."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise SourceError(f"image {file} cannot be read: {error.strerror}") from None
    if content.startswith((b"\xff\xd8\xff", b"\x89PNG")):  # the same checks as for messages
        try:
            check_image_file(content, file.suffix, _check_size)
        except FrameError as error:
            raise SourceError(f"image {file}: {error}") from None
    data = np.frombuffer(content, np.uint8)
    try:
        # imdecode instead of imread, which gives no reason and fails on unusual file names.
        bgr = cv2.imdecode(data, cv2.IMREAD_COLOR) if data.size else None
    except cv2.error as error:
        raise SourceError(f"image {file} cannot be decoded: {error.err}") from None
    if bgr is None:
        raise SourceError(f"image {file} cannot be decoded")
    return np.asarray(bgr, np.uint8)


class DeviceSource:
    """A V4L2 device such as /dev/video0; the driver selects the nearest supported size and rate."""

    live = True

    def __init__(self, path: Path, size: tuple[int, int] | None, rate_hz: float | None) -> None:
        self.name = str(path)
        self.notes: list[str] = []
        self._capture = cv2.VideoCapture(str(path), cv2.CAP_V4L2)
        if size is not None:
            self._capture.set(cv2.CAP_PROP_FRAME_WIDTH, size[0])
            self._capture.set(cv2.CAP_PROP_FRAME_HEIGHT, size[1])
        if rate_hz is not None:
            self._capture.set(cv2.CAP_PROP_FPS, rate_hz)
        if not self._capture.isOpened():
            raise SourceError(f"device {path} cannot be opened as a V4L2 camera (in use, no permission, or no camera)")
        reported_hz = float(self._capture.get(cv2.CAP_PROP_FPS))
        self.rate_hz: float | None = reported_hz if 0.0 < reported_hz < 1000.0 else None

    def items(self) -> Iterator[SourceImage]:
        try:
            while True:
                readable, bgr = self._capture.read()
                if not readable:
                    raise SourceError(f"device {self.name} stopped delivering images")
                yield SourceImage(_rgb(bgr))
        finally:
            self._capture.release()


def open_source(
    name: str,
    *,
    size: tuple[int, int] | None = None,
    rate_hz: float | None = None,
    seed: int = 0,
    count: int | None = None,
) -> Source:
    """Open the source `name`: `scenes`, a /dev device, a folder of images, an image or a video.

    size, rate_hz: requested from a device and for generated scenes; files have their own. count: number of wanted
    frames, if known. Raises SourceError if the source does not exist or cannot be read.
    """
    if name == "scenes":
        from multi_dnn_ros.camera.generated import SceneSource  # slow import, not needed for files

        rate = rate_hz or 10.0
        return SceneSource(size or (640, 480), seed, rate, length=count or round(600 * rate))
    path = Path(name)
    if not path.exists():
        raise SourceError(f"source '{name}' does not exist; give a file, a folder, a /dev/video device, or 'scenes'")
    if path.is_char_device():
        return DeviceSource(path, size, rate_hz)
    if (path / "metadata.yaml").exists() or path.suffix in (".mcap", ".db3"):
        raise SourceError(f"{path} is a recording; play it with `ros2 bag play`, or run `multi-dnn replay`")
    if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
        return ImageSource(path)
    if path.stat().st_size == 0:
        raise SourceError(f"video {path} is empty (0 bytes)")
    return VideoSource(path)


def _check_size(width: int, height: int) -> None:
    if width * height > _MAX_PIXELS:
        raise FrameError(f"{width} x {height} pixels; allowed: at most {_MAX_PIXELS}")


def _rgb(bgr: Any) -> npt.NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)
