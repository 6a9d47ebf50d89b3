"""Decoding of JPEG and PNG files with OpenCV; does not import PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common.errors import FrameError

Bytes = npt.NDArray[np.uint8]
#: (H, W, 3) uint8, C-contiguous.
RgbImage = npt.NDArray[np.uint8]


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
