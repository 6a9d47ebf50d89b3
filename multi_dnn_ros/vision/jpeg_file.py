"""A checked JPEG file as the image of a frame, and decoding with OpenCV; does not import PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common.errors import FrameError

Bytes = npt.NDArray[np.uint8]
#: (H, W, 3) uint8, C-contiguous.
RgbImage = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class JpegFile:
    """A JPEG file that :func:`multi_dnn_ros.vision.image_decoding.jpeg_for_device` has accepted.

    data: the file, (bytes,) uint8, contiguous. height, width: pixels, from its header.
    """

    data: Bytes
    height: int
    width: int

    def decode(self) -> RgbImage:
        """The image on the CPU, (H, W, 3) uint8 RGB. Raises FrameError."""
        return decode_file(self.data, self.height, self.width)

    def copy(self, memory: Bytes | None = None) -> JpegFile:
        """A copy in `memory`, (bytes,) uint8 of the size of the file; None: in new memory."""
        if memory is None:
            memory = np.empty_like(self.data)
        np.copyto(memory, self.data)
        return JpegFile(memory, self.height, self.width)


#: The image of a frame: pixels, or a file that is decoded when the pixels are needed.
FrameImage = RgbImage | JpegFile


def size_of(image: FrameImage) -> tuple[int, int]:
    """(height, width)."""
    if isinstance(image, JpegFile):
        return image.height, image.width
    height, width = image.shape[:2]
    return height, width


def pixels_of(image: FrameImage) -> RgbImage:
    """The pixels, (H, W, 3) uint8 RGB; a file is decoded by each call. Raises FrameError."""
    return image.decode() if isinstance(image, JpegFile) else image


def new_image(height: int, width: int) -> RgbImage:
    """Memory for an image."""
    return np.empty((height, width, 3), np.uint8)


def decode_file(data: Bytes, height: int, width: int, allocate: Callable[[int, int], RgbImage] = new_image) -> RgbImage:
    """A JPEG or PNG file, (bytes,) uint8, as (H, W, 3) uint8 RGB in memory from `allocate`.

    height, width: from the header of the file. Orientation tags are ignored, so that pixels stay where camera_info
    says; 16-bit PNGs keep their upper 8 bits. Raises FrameError.
    """
    import cv2  # only here: processes without images start sooner

    decoded = read_file(data, height, width, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    image = allocate(height, width)
    converted = cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB, dst=image)  # written to `image`, which has the right shape
    assert np.may_share_memory(converted, image)
    return image


def read_file(data: Bytes, height: int, width: int, flags: int) -> npt.NDArray[Any]:
    """The values of a file as OpenCV reads it with these flags (cv2.IMREAD_...). Raises FrameError."""
    import cv2

    try:
        decoded = cv2.imdecode(data, flags)
    except cv2.error as error:
        raise FrameError(f"data cannot be decoded: {error.err or error}") from None
    if decoded is None or decoded.shape[:2] != (height, width):
        raise FrameError(
            f"data cannot be decoded: the header says {width} x {height}, "
            f"the decoder gives {'nothing' if decoded is None else decoded.shape}"
        )
    return np.asarray(decoded)
