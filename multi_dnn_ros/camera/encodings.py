"""Encodes RGB images as sensor_msgs/Image data."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

RgbArray = npt.NDArray[np.uint8]


class Encoded(NamedTuple):
    """Fields of a sensor_msgs/Image. step: bytes per row. data: (bytes,) uint8."""

    height: int
    width: int
    encoding: str
    step: int
    data: RgbArray


def encode(rgb: RgbArray, encoding: str) -> Encoded:
    """Encode an image, (H, W, 3) uint8 RGB, in a ROS encoding.

    The YUV encodings are BT.601 with limited range, as OpenCV reads them, and need an even width and height.
    Raises ValueError for an unknown encoding, or for a size that the encoding cannot represent.
    """
    if encoding not in ENCODERS:
        raise ValueError(f"encoding is '{encoding}'; it must be one of {', '.join(ENCODERS)}")
    height, width = rgb.shape[:2]
    encoder = ENCODERS[encoding]
    if encoder.even and (width % 2 or height % 2):
        raise ValueError(f"encoding {encoding} needs an even width and height, not {width}x{height}")
    pixels = np.ascontiguousarray(encoder.encode(rgb))
    return Encoded(height, width, encoding, pixels.nbytes // len(pixels), pixels.view(np.uint8).reshape(-1))


_JPEG_QUALITY = 90


def compress(rgb: RgbArray, image_format: str) -> npt.NDArray[np.uint8]:
    """Encode an image, (H, W, 3) uint8 RGB, as the bytes of a `jpeg` or `png` file."""
    options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if image_format == "jpeg" else []
    done, data = cv2.imencode(f".{image_format}", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), options)
    if not done:
        raise ValueError(f"an image of {rgb.shape[1]}x{rgb.shape[0]} cannot be written as {image_format}")
    return np.asarray(data, np.uint8).reshape(-1)


def resize(rgb: RgbArray, size: tuple[int, int]) -> RgbArray:
    """Stretch an image to `size`, (width, height)."""
    if (rgb.shape[1], rgb.shape[0]) == size:
        return rgb
    shrinks = size[0] * size[1] < rgb.shape[0] * rgb.shape[1]
    return np.asarray(cv2.resize(rgb, size, interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR), np.uint8)


def _convert(code: int) -> Callable[[RgbArray], RgbArray]:
    return lambda rgb: np.asarray(cv2.cvtColor(rgb, code), np.uint8)


def _mono16(rgb: RgbArray) -> npt.NDArray[np.uint16]:
    # 257 = 65535 / 255: white stays white. The message says little-endian.
    return (cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY).astype(np.uint16) * 257).astype("<u2")


def _planes(rgb: RgbArray) -> tuple[RgbArray, RgbArray, RgbArray]:
    """Return the planes Y (H, W), U and V (H / 2, W / 2)."""
    height, width = rgb.shape[:2]
    planar = np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2YUV_I420), np.uint8).reshape(-1)
    luma, chroma = planar[: height * width], planar[height * width :].reshape(2, height // 2, width // 2)
    return luma.reshape(height, width), chroma[0], chroma[1]


def _nv12(rgb: RgbArray) -> RgbArray:
    luma, u, v = _planes(rgb)
    return np.concatenate([luma, np.stack([u, v], axis=-1).reshape(-1, luma.shape[1])])


def _packed_422(luma_first: bool) -> Callable[[RgbArray], RgbArray]:
    def convert(rgb: RgbArray) -> RgbArray:
        luma, u, v = _planes(rgb)
        height, width = luma.shape
        chroma = np.stack([u, v], axis=-1).reshape(height // 2, width)  # U V U V ...
        chroma = np.repeat(chroma, 2, axis=0)
        return np.stack([luma, chroma] if luma_first else [chroma, luma], axis=-1).reshape(height, 2 * width)

    return convert


def _bayer(pattern: str) -> Callable[[RgbArray], RgbArray]:
    def convert(rgb: RgbArray) -> RgbArray:
        mosaic = np.empty(rgb.shape[:2], np.uint8)
        for position, color in enumerate(pattern):  # the 2x2 cell from the top left, row by row
            row, column = divmod(position, 2)
            mosaic[row::2, column::2] = rgb[row::2, column::2, "rgb".index(color)]
        return mosaic

    return convert


class Encoder(NamedTuple):
    """encode: (H, W, 3) uint8 RGB -> array whose bytes are the message's data; its first dimension are the rows of the
    data. even: whether the width and the height must be even.
    """

    encode: Callable[[RgbArray], npt.NDArray[np.uint8] | npt.NDArray[np.uint16]]
    even: bool = False


#: By encoding; `--encoding` of the command line has the same names, as a test checks.
ENCODERS: dict[str, Encoder] = {
    "rgb8": Encoder(lambda rgb: rgb),
    "bgr8": Encoder(_convert(cv2.COLOR_RGB2BGR)),
    "rgba8": Encoder(_convert(cv2.COLOR_RGB2RGBA)),
    "bgra8": Encoder(_convert(cv2.COLOR_RGB2BGRA)),
    "mono8": Encoder(_convert(cv2.COLOR_RGB2GRAY)),
    "mono16": Encoder(_mono16),
    "yuv422": Encoder(_packed_422(luma_first=False), even=True),  # UYVY
    "yuv422_yuy2": Encoder(_packed_422(luma_first=True), even=True),
    "nv12": Encoder(_nv12, even=True),
    **{f"bayer_{pattern}8": Encoder(_bayer(pattern)) for pattern in ("rggb", "bggr", "gbrg", "grbg")},
}
