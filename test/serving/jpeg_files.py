"""JPEG files as images of cameras."""

from __future__ import annotations

import array
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.image_decoding import ImageSettings, jpeg_for_device
from multi_dnn_ros.vision.jpeg_file import JpegFile

SETTINGS = ImageSettings("front", 1280 * 720)


def message(value: int = 200, size: tuple[int, int] = (48, 64), extension: str = ".jpg") -> Any:
    """A CompressedImage full of `value`."""
    return encoded(np.full((*size, 3), value, np.uint8), extension)


def encoded(pixels: npt.NDArray[np.uint8], extension: str = ".jpg", *options: int) -> Any:
    data = cv2.imencode(extension, pixels, options)[1]
    return SimpleNamespace(format=extension, data=array.array("B", data.tobytes()))


def damaged(size: tuple[int, int] = (48, 64)) -> Any:
    """A file that passes the checks of its header, and that no decoder can read: its Huffman tables are impossible."""
    whole = message(200, size)
    table = bytes(whole.data).index(b"\xff\xc4")
    whole.data[table + 5 : table + 21] = array.array("B", [255] * 16)
    return whole


def jpeg(*arguments: Any) -> JpegFile:
    file = jpeg_for_device(message(*arguments), SETTINGS)
    assert file is not None
    return file
