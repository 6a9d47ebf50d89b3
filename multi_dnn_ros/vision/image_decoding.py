"""sensor_msgs/Image and CompressedImage to (H, W, 3) uint8 RGB, with every claim of the message checked first.

cv_bridge is not used: of 4.1 (Jazzy) the source shows that rows are skewed when `step` is no multiple of the pixel
size, that big-endian images fail with numpy 2, and that nv12 and a data array of the wrong length are not handled;
where it is right, OpenCV does the work, as it does here. test/real_ros compares the two where cv_bridge is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common.frame_error import FrameError
from multi_dnn_ros.vision.image_files import check_image_file

RgbImage = npt.NDArray[np.uint8]
#: From an image's (height, width), checked already, to the memory that it goes to, (H, W, 3) uint8, C-contiguous.
AllocateImage = Callable[[int, int], RgbImage]
_Rows = npt.NDArray[np.uint8]  # (rows, bytes of a row without padding), the rows `step` apart


class ImageMessage(Protocol):
    """The fields of sensor_msgs/Image that are read."""

    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: Any


class CompressedImageMessage(Protocol):
    """The fields of sensor_msgs/CompressedImage that are read."""

    format: str
    data: Any


@dataclass(frozen=True)
class _Encoding:
    """to_rgb: rows, width and 'is big-endian' to RGB, written to the image given. planes: rows of data for each row of
    the image.

    multiple: what width (and, with planes, height) must be a multiple of. least: of width and height.
    """

    pixel_bytes: int
    to_rgb: Callable[[_Rows, int, bool, RgbImage], None]
    planes: float = 1.0
    multiple: int = 1
    least: int = 1


def _new_image(height: int, width: int) -> RgbImage:
    return np.empty((height, width, 3), np.uint8)


def decode_image(message: ImageMessage, max_pixels: int, allocate: AllocateImage = _new_image) -> RgbImage:
    """A raw image as (H, W, 3) uint8 RGB, C-contiguous, written in one pass to what `allocate` gives.

    16-bit values become 8-bit ones as round(v / 257), so that 65535 is 255; a camera that fills only the lower 10 or 12
    bits looks dark. 8UC1 and 8UC3 are read as OpenCV means them, grey and BGR. YUV is BT.601, limited range.

    Raises FrameError, which names the field, its value and what is allowed.
    """
    width, height, step = message.width, message.height, message.step
    encoding = _ENCODINGS.get(message.encoding)
    if encoding is None:
        raise FrameError(f"encoding is {message.encoding[:40]!r}; allowed: {', '.join(_ENCODINGS)}")
    _check_size(width, height, max_pixels)
    for name, value in (("width", width), ("height", height)):
        multiple = encoding.multiple if name == "width" or encoding.planes > 1 else 1
        if value % multiple or value < encoding.least:
            raise FrameError(
                f"{name} is {value}; allowed with encoding {message.encoding}: "
                f"at least {max(encoding.least, multiple)}, a multiple of {multiple}"
            )
    row_bytes = width * encoding.pixel_bytes
    if step < row_bytes:
        raise FrameError(
            f"step is {step}; allowed: at least {row_bytes} ({width} pixels of {encoding.pixel_bytes} bytes)"
        )
    rows = round(height * encoding.planes)
    if len(message.data) != step * rows:
        raise FrameError(
            f"data has {len(message.data)} bytes; allowed: exactly {step * rows} (step {step} x {rows} rows)"
        )
    data = np.frombuffer(message.data, dtype=np.uint8).reshape(rows, step)[:, :row_bytes]
    image = allocate(height, width)
    encoding.to_rgb(data, width, bool(message.is_bigendian), image)
    return image


def decode_compressed(
    message: CompressedImageMessage, max_pixels: int, allocate: AllocateImage = _new_image
) -> RgbImage:
    """A JPEG or PNG image as (H, W, 3) uint8 RGB, C-contiguous, in memory from `allocate`.

    16-bit PNGs keep their upper 8 bits.

    The file itself is looked at, not `format`, which drivers fill in differently. Orientation tags are ignored: pixels
    stay where camera_info says they are. Raises FrameError: also for a file that is cut short, which OpenCV alone would
    half decode, and for a size over `max_pixels`, before anything is decoded.
    """
    data = bytes(message.data)
    width, height = check_image_file(data, message.format, lambda w, h: _check_size(w, h, max_pixels))
    try:
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise FrameError(f"data cannot be decoded: {error.err or error}") from None
    if decoded is None or decoded.shape != (height, width, 3):
        raise FrameError(
            f"data cannot be decoded: the header says {width} x {height}, "
            f"the decoder gives {'nothing' if decoded is None else decoded.shape}"
        )
    image = allocate(height, width)
    _convert(decoded, cv2.COLOR_BGR2RGB, image)
    return image


def _convert(image: npt.NDArray[Any], code: int, into: RgbImage) -> None:
    """OpenCV's conversion, in place: it writes to `dst` where that has the shape and type of the result."""
    converted = cv2.cvtColor(image, code, dst=into)
    assert np.may_share_memory(converted, into)


def _check_size(width: int, height: int, max_pixels: int) -> None:
    """Before anything is allocated for it."""
    for name, value in (("width", width), ("height", height)):
        if value < 1:
            raise FrameError(f"{name} is {value}; allowed: at least 1")
    if width * height > max_pixels:
        raise FrameError(
            f"width x height is {width} x {height} = {width * height} pixels; "
            f"allowed: at most {max_pixels} (parameter camera.<camera>.max_pixels)"
        )


def _channels(count: int, code: int | None = None) -> Callable[[_Rows, int, bool, RgbImage], None]:
    """8-bit interleaved channels; `code` is OpenCV's conversion, None where they are RGB already."""

    def to_rgb(rows: _Rows, width: int, big_endian: bool, into: RgbImage) -> None:
        image = rows.reshape(len(rows), width, count) if count > 1 else rows
        if code is None:
            np.copyto(into, image)
        else:
            _convert(image, code, into)

    return to_rgb


def _channels16(count: int, code: int | None = None) -> Callable[[_Rows, int, bool, RgbImage], None]:
    """As :func:`_channels` with 16-bit values, scaled to 8 bits after the conversion."""

    def to_rgb(rows: _Rows, width: int, big_endian: bool, into: RgbImage) -> None:
        packed = np.ascontiguousarray(rows)  # numpy before 1.23 (Ubuntu 22.04's is 1.21) views no padded rows
        values = packed.view(">u2" if big_endian else "<u2").astype(np.uint16)
        image = values.reshape(len(rows), width, count) if count > 1 else values
        rgb = image if code is None else cv2.cvtColor(image, code)
        cv2.convertScaleAbs(rgb, dst=into, alpha=1 / 257)

    return to_rgb


#: OpenCV names a Bayer pattern by the second row's second and third pixels, ROS by the first row's first two and the
#: second row's: bayer_rggb8 is OpenCV's BG. (OpenCV's newer aliases by the ROS order are not in Ubuntu 22.04's.)
_BAYER = {
    "rggb": cv2.COLOR_BayerBG2RGB,
    "bggr": cv2.COLOR_BayerRG2RGB,
    "gbrg": cv2.COLOR_BayerGR2RGB,
    "grbg": cv2.COLOR_BayerGB2RGB,
}

_UYVY = _Encoding(2, _channels(2, cv2.COLOR_YUV2RGB_UYVY), multiple=2)
_YUYV = _Encoding(2, _channels(2, cv2.COLOR_YUV2RGB_YUY2), multiple=2)

_ENCODINGS = {
    "rgb8": _Encoding(3, _channels(3)),
    "bgr8": _Encoding(3, _channels(3, cv2.COLOR_BGR2RGB)),
    "rgba8": _Encoding(4, _channels(4, cv2.COLOR_RGBA2RGB)),
    "bgra8": _Encoding(4, _channels(4, cv2.COLOR_BGRA2RGB)),
    "mono8": _Encoding(1, _channels(1, cv2.COLOR_GRAY2RGB)),
    "8UC1": _Encoding(1, _channels(1, cv2.COLOR_GRAY2RGB)),
    "8UC3": _Encoding(3, _channels(3, cv2.COLOR_BGR2RGB)),
    "mono16": _Encoding(2, _channels16(1, cv2.COLOR_GRAY2RGB)),
    "rgb16": _Encoding(6, _channels16(3)),
    "bgr16": _Encoding(6, _channels16(3, cv2.COLOR_BGR2RGB)),
    "yuv422": _UYVY,
    "uyvy": _UYVY,
    "yuv422_yuy2": _YUYV,
    "yuyv": _YUYV,
    "nv12": _Encoding(1, _channels(1, cv2.COLOR_YUV2RGB_NV12), planes=1.5, multiple=2),
    "nv21": _Encoding(1, _channels(1, cv2.COLOR_YUV2RGB_NV21), planes=1.5, multiple=2),
    # OpenCV's demosaicing leaves images under 3 x 3 unwritten.
    **{f"bayer_{order}8": _Encoding(1, _channels(1, code), least=3) for order, code in _BAYER.items()},
    **{f"bayer_{order}16": _Encoding(2, _channels16(1, code), least=3) for order, code in _BAYER.items()},
}
