"""Images, in any ROS encoding, and the ground truth of generated scenes as messages."""

from __future__ import annotations

import array
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.ros.result_messages import detections_message
from multi_dnn_ros.vision.results import Detections

if TYPE_CHECKING:
    from multi_dnn_ros.training.scenes import Scene

RgbArray = npt.NDArray[np.uint8]
_JPEG_QUALITY = 90
#: Encodings of CompressedImage messages.
COMPRESSED = ("jpeg", "png")


def encode(rgb: RgbArray, encoding: str) -> tuple[int, RgbArray]:
    """Encode an image, (H, W, 3) uint8 RGB, in a ROS encoding: bytes per row, and the data as (bytes,) uint8.

    The YUV encodings are BT.601 with limited range, as OpenCV reads them, and need an even width and height.
    Raises ValueError for an unknown encoding, or for a size that the encoding cannot represent.
    """
    if encoding not in ENCODERS:
        raise ValueError(f"encoding is '{encoding}'; it must be one of {', '.join(ENCODERS)}")
    height, width = rgb.shape[:2]
    if encoding in _EVEN and (width % 2 or height % 2):
        raise ValueError(f"encoding {encoding} needs an even width and height, not {width}x{height}")
    pixels = np.ascontiguousarray(ENCODERS[encoding](rgb))
    return pixels.nbytes // len(pixels), pixels.view(np.uint8).reshape(-1)


def compress(rgb: RgbArray, image_format: str) -> RgbArray:
    """Encode an image, (H, W, 3) uint8 RGB, as the bytes of a `jpeg` or `png` file."""
    options = [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY] if image_format == "jpeg" else []
    _, data = cv2.imencode(f".{image_format}", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), options)
    return np.asarray(data, np.uint8).reshape(-1)


def _mono16(rgb: RgbArray) -> Any:
    # 257 = 65535 / 255: white stays white. The message says little-endian.
    return (cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY).astype(np.uint16) * 257).astype("<u2")


def _planes(rgb: RgbArray) -> tuple[RgbArray, RgbArray]:
    """Luma (H, W), and chroma (H / 2, W) with U and V in turn."""
    height, width = rgb.shape[:2]
    planes = np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2YUV_I420), np.uint8).reshape(-1)
    luma, chroma = np.split(planes, [height * width])
    return luma.reshape(height, width), chroma.reshape(2, -1).T.reshape(height // 2, width)


def _packed(rgb: RgbArray, *, luma_first: bool) -> RgbArray:
    luma, chroma = _planes(rgb)
    pair = (luma, np.repeat(chroma, 2, axis=0))
    return np.stack(pair if luma_first else pair[::-1], axis=-1).reshape(len(luma), -1)


def _bayer(rgb: RgbArray, *, pattern: str) -> RgbArray:
    mosaic = np.empty(rgb.shape[:2], np.uint8)
    for position, color in enumerate(pattern):  # the 2x2 cell from the top left, row by row
        row, column = divmod(position, 2)
        mosaic[row::2, column::2] = rgb[row::2, column::2, "rgb".index(color)]
    return mosaic


#: (H, W, 3) uint8 RGB -> array whose bytes are the message's data and whose first axis are its rows, by encoding.
#: `--encoding` of the command line has the same names, as a test checks.
ENCODERS: dict[str, Callable[[RgbArray], Any]] = {
    "rgb8": lambda rgb: rgb,
    "bgr8": lambda rgb: rgb[..., ::-1],
    "rgba8": lambda rgb: cv2.cvtColor(rgb, cv2.COLOR_RGB2RGBA),
    "bgra8": lambda rgb: cv2.cvtColor(rgb, cv2.COLOR_RGB2BGRA),
    "mono8": lambda rgb: cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY),
    "mono16": _mono16,
    "yuv422": partial(_packed, luma_first=False),  # UYVY
    "yuv422_yuy2": partial(_packed, luma_first=True),
    "nv12": lambda rgb: np.concatenate(_planes(rgb)),
    **{f"bayer_{pattern}8": partial(_bayer, pattern=pattern) for pattern in ("rggb", "bggr", "gbrg", "grbg")},
}
_EVEN = ("yuv422", "yuv422_yuy2", "nv12")


def image_message(pixels: RgbArray, header: Header, encoding: str = "rgb8") -> Any:
    """(H, W, 3) uint8 RGB pixels as a CompressedImage if `encoding` is `jpeg` or `png`, otherwise as an Image.

    Raises ValueError for an unknown encoding, or for a size that the encoding cannot represent.
    """
    if encoding in COMPRESSED:
        text = f"rgb8; {encoding} compressed bgr8"  # as image_transport's publisher writes it
        return CompressedImage(header=header, format=text, data=array.array("B", compress(pixels, encoding).tobytes()))
    step, data = encode(pixels, encoding)
    message = Image(header=header, height=len(pixels), width=pixels.shape[1], encoding=encoding, step=step)
    message.data = array.array("B", data.tobytes())  # which rclpy accepts without checking every byte
    return message


def truth_message(scene: Scene, header: Header) -> Detection2DArray:
    """The boxes of a generated scene as detections of score 1."""
    from multi_dnn_ros.training.scenes import LABELS

    scores = np.ones(len(scene.boxes), np.float32)
    return detections_message(Detections(scene.boxes, scores, scene.class_ids, tuple(LABELS)), header)
