"""Image sources: a video, a folder of images, a V4L2 device, or the generated road."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common.errors import FrameError
from multi_dnn_ros.vision.image_files import IMAGE_SUFFIXES, check_image_file, image_files, natural_order

if TYPE_CHECKING:
    from multi_dnn_ros.training.scenes import Scene

_MAX_PIXELS = 1 << 27
#: Interval in seconds after which a generated drive changes road and weather, and its length if it has no other.
_SECTION_S = 5.0
_DRIVE_S = 600.0
#: Maximum size of the images of a drive that are rendered in advance: 30 s of 1280x720 at 30 Hz.
_MAX_PREPARED_BYTES = 3 << 30


class SourceError(ValueError):
    """A source cannot be opened or read; the message names it and says why."""


@dataclass(frozen=True)
class SourceImage:
    """One image. image: (H, W, 3) uint8 RGB. scene: exact ground truth, for generated images."""

    image: npt.NDArray[np.uint8]
    scene: Scene | None = None


class Source(ABC):
    """A sequence of images that can be iterated repeatedly, unless it is live.

    rate_hz: rate of the source; None if it has none. live: whether it delivers images in real time. count: number of
    images, 0: unknown. notes: problems, known after a complete iteration.
    """

    rate_hz: float | None = None
    live = False
    count = 0

    def __init__(self, name: str | Path) -> None:
        self.name = str(name)
        self.notes: list[str] = []

    @abstractmethod
    def items(self) -> Iterator[SourceImage]: ...

    def _note(self, text: str) -> None:
        if text not in self.notes:  # of an earlier iteration
            self.notes.append(text)


class VideoSource(Source):
    """A video file, read by OpenCV. count: according to its header."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        capture = self._open()
        self.rate_hz = _rate_hz(capture)
        self.count = max(0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
        readable, _ = capture.read()
        capture.release()
        if not readable:
            raise SourceError(f"video {path} is broken: its first frame cannot be decoded")

    def items(self) -> Iterator[SourceImage]:
        capture, count = self._open(), 0
        try:
            while (read := capture.read())[0]:
                count += 1
                yield SourceImage(_rgb(read[1]))
        finally:
            capture.release()
        if count < self.count - 2:  # containers may overstate the count by a frame or two
            self._note(f"video {self.name} is cut short: {count} of {self.count} frames could be decoded")

    def _open(self) -> cv2.VideoCapture:
        capture = cv2.VideoCapture(self.name)
        if not capture.isOpened():
            raise SourceError(f"video {self.name} cannot be opened: not a video format that OpenCV supports")
        return capture


class ImageSource(Source):
    """One image, or the images of a folder in natural order of their names (frame9 before frame10). Those of a folder
    that cannot be read are left out, and named in the notes.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._is_folder = path.is_dir()
        self._files = sorted(image_files(path), key=lambda file: natural_order(file.name)) if path.is_dir() else [path]
        self.count = len(self._files)
        if not self._files:
            raise SourceError(f"folder {path} holds no image ({', '.join(IMAGE_SUFFIXES)})")

    def items(self) -> Iterator[SourceImage]:
        for file in self._files:
            try:
                yield SourceImage(_rgb(_read_image(file)))
            except SourceError as error:
                if not self._is_folder:
                    raise
                self._note(str(error))


class DeviceSource(Source):
    """A V4L2 device such as /dev/video0; the driver selects the nearest supported size and rate."""

    live = True

    def __init__(self, path: Path, size: tuple[int, int] | None, rate_hz: float | None) -> None:
        super().__init__(path)
        self._capture = cv2.VideoCapture(self.name, cv2.CAP_V4L2)
        width, height = size or (None, None)
        names = (cv2.CAP_PROP_FPS, cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT)
        for name, value in zip(names, (rate_hz, width, height), strict=True):
            if value is not None:
                self._capture.set(name, value)
        if not self._capture.isOpened():
            raise SourceError(f"device {path} cannot be opened as a V4L2 camera (in use, no permission, or no camera)")
        self.rate_hz = _rate_hz(self._capture)

    def items(self) -> Iterator[SourceImage]:
        try:
            while (read := self._capture.read())[0]:
                yield SourceImage(_rgb(read[1]))
        finally:
            self._capture.release()
        raise SourceError(f"device {self.name} stopped delivering images")


class SceneSource(Source):
    """A generated drive of `count` images with exact ground truth; deterministic for `seed`, size and rate."""

    def __init__(self, size: tuple[int, int], seed: int, rate_hz: float, count: int) -> None:
        from multi_dnn_ros.training.scenes import SceneGenerator  # slow import, not needed for files

        super().__init__(f"scenes (seed {seed})")
        self.rate_hz, self.count = rate_hz, count
        self._drive = SceneGenerator(*size, seed).drive(count, rate_hz, _SECTION_S)
        self._prepared: list[SourceImage] = []

    def items(self) -> Iterator[SourceImage]:
        yield from self._prepared
        for index in range(len(self._prepared), self.count):
            scene = self._drive.frame(index)
            yield SourceImage(scene.image, scene)

    def prepare(self, progress: Callable[[], object]) -> None:
        """Render the images in advance, as many as fit in memory, so that playing takes no CPU time for it.

        progress: called after every image.
        """
        first = next(self.items())
        images = []
        for image in islice(self.items(), _MAX_PREPARED_BYTES // (first.image.nbytes * 4 // 3)):  # with the mask
            images.append(image)
            progress()
        self._prepared = images


def open_source(
    name: str, *, size: tuple[int, int] | None = None, rate_hz: float | None = None, seed: int = 0,
    count: int | None = None,
) -> Source:  # fmt: skip
    """Open the source `name`: `scenes`, a /dev device, a folder of images, an image or a video.

    size, rate_hz: requested from a device and for generated scenes; files have their own. count: number of wanted
    frames, if known. Raises SourceError if the source does not exist or cannot be read.
    """
    if name == "scenes":
        rate = rate_hz or 10.0
        return SceneSource(size or (640, 480), seed, rate, count or round(_DRIVE_S * rate))
    path = Path(name)
    if not path.exists():
        raise SourceError(f"source '{name}' does not exist; give a file, a folder, a /dev/video device, or 'scenes'")
    if path.is_char_device():
        return DeviceSource(path, size, rate_hz)
    if (path / "metadata.yaml").exists() or path.suffix in (".mcap", ".db3"):
        raise SourceError(f"{path} is a recording; play it with `ros2 bag play`, or run `multi-dnn replay`")
    if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
        return ImageSource(path)
    if not path.stat().st_size:
        raise SourceError(f"video {path} is empty")
    return VideoSource(path)


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


def _check_size(width: int, height: int) -> None:
    if width * height > _MAX_PIXELS:
        raise FrameError(f"{width} x {height} pixels; allowed: at most {_MAX_PIXELS}")


def _rate_hz(capture: cv2.VideoCapture) -> float | None:
    """The rate that a video or a device states; None: none, or an impossible one."""
    rate_hz = float(capture.get(cv2.CAP_PROP_FPS))
    return rate_hz if 0.0 < rate_hz < 1000.0 else None


def _rgb(bgr: Any) -> npt.NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)
