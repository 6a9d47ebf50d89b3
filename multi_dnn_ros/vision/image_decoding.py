"""Converts sensor_msgs/Image and CompressedImage to (H, W, 3) uint8 RGB, after checking all fields of the message.

cv_bridge is not used. According to its source, version 4.1 (Jazzy) skews rows if `step` is not a multiple of the pixel
size, fails for big-endian images with numpy 2, and handles neither nv12 nor a data array of the wrong length. It
converts with OpenCV, as this module does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.common.errors import FrameError
from multi_dnn_ros.vision.image_files import check_image_file, is_16_bit_png

#: (H, W, 3) uint8, C-contiguous.
RgbImage = npt.NDArray[np.uint8]
#: (height, width), already checked -> memory for the image, (H, W, 3) uint8, C-contiguous.
AllocateImage = Callable[[int, int], RgbImage]


def new_image(height: int, width: int) -> RgbImage:
    """Memory for an image."""
    return np.empty((height, width, 3), np.uint8)


class ImageSettings:
    """The parameters of a camera that the conversion of its images depends on.

    camera: its name, for messages. max_pixels: maximum size. bits: number of bits that the camera uses of 16. warn:
    called with a text if the first image with 16 bits per value uses a small part of their range.
    """

    def __init__(
        self, camera: str, max_pixels: int, bits: int = 16, warn: Callable[[str], object] = lambda text: None
    ) -> None:
        self.camera = camera
        self.max_pixels = max_pixels
        self.bits = bits
        self._warn = warn
        self._checked = False

    def check_size(self, width: int, height: int) -> None:
        """Raise FrameError for an empty image or too many pixels, before memory is allocated."""
        for name, value in (("width", width), ("height", height)):
            if value < 1:
                raise FrameError(f"{name} is {value}; allowed: at least 1")
        if width * height > self.max_pixels:
            raise FrameError(
                f"width x height is {width} x {height} = {width * height} pixels; "
                f"allowed: at most {self.max_pixels} (parameter camera.{self.camera}.max_pixels)"
            )

    def to_8_bits(self, values: npt.NDArray[Any], into: RgbImage) -> None:
        """Write round(v * 255 / (2**bits - 1)), at most 255, of RGB values (H, W, 3) uint16 to `into`."""
        if not self._checked:
            self._checked = True
            largest = int(values.max())
            if largest.bit_length() <= self.bits - 2:
                self._warn(
                    f"camera {self.camera}: the largest value of the first image is {largest} of {2**self.bits - 1}; "
                    "if the camera has 10, 12 or 14 bits, its images are nearly black for the DNNs: set parameter "
                    f"camera.{self.camera}.bits to that number"
                )
        cv2.convertScaleAbs(values, dst=into, alpha=255 / (2**self.bits - 1))


@dataclass(frozen=True)
class Encoding:
    """How data of one ROS encoding is checked and converted.

    channels: interleaved values per pixel. code: OpenCV's conversion to RGB; None: they are RGB. value_bytes: 1, or 2
    for values of 16 bits. planes: rows of data per row of the image. multiple: divides the width and, if `planes` is
    above 1, the height. min_side: minimum of width and height.
    """

    channels: int
    code: int | None = None
    value_bytes: int = 1
    planes: float = 1.0
    multiple: int = 1
    min_side: int = 1

    @property
    def pixel_bytes(self) -> int:
        return self.channels * self.value_bytes


def decode_image(message: Any, settings: ImageSettings, allocate: AllocateImage = new_image) -> RgbImage:
    """A raw image as (H, W, 3) uint8 RGB, C-contiguous, written in one pass to memory from `allocate`.

    16-bit values are scaled to 8 bits, see :meth:`ImageSettings.to_8_bits`. 8UC1 and 8UC3 are grey and BGR, as in
    OpenCV. YUV is BT.601, limited range.

    Raises FrameError, which names the field, its value and what is allowed.
    """
    width, height, step = message.width, message.height, message.step
    encoding = ENCODINGS.get(message.encoding)
    if encoding is None:
        raise FrameError(f"encoding is {message.encoding[:40]!r}; allowed: {', '.join(ENCODINGS)}")
    settings.check_size(width, height)
    _check_sides(encoding, message.encoding, width, height)
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
    values: npt.NDArray[Any] = np.frombuffer(message.data, np.uint8).reshape(rows, step)[:, :row_bytes]
    if encoding.value_bytes == 2:
        # NumPy before 1.23 (Ubuntu 22.04 has 1.21) cannot view padded rows.
        packed = np.ascontiguousarray(values)
        values = packed.view(">u2" if message.is_bigendian else "<u2").astype(np.uint16)
    if encoding.channels > 1:
        values = values.reshape(rows, width, encoding.channels)
    return _converted(values, encoding.code, settings, allocate(height, width))


def decode_compressed(message: Any, settings: ImageSettings, allocate: AllocateImage = new_image) -> RgbImage:
    """A JPEG or PNG image as (H, W, 3) uint8 RGB, C-contiguous, in memory from `allocate`.

    The type of the file is detected from the data, because drivers fill in `format` differently. image_transport
    writes the encoding of the raw image before a semicolon there, and compresses the mosaic of a Bayer image as a grey
    image. 16-bit PNGs are scaled as 16-bit raw images are. Orientation tags are ignored, so that pixels stay where
    camera_info says. Raises FrameError; a truncated file, of which OpenCV would decode a part, and a size above
    `max_pixels` are detected before anything is decoded.
    """
    data = bytes(message.data)
    width, height = check_image_file(data, message.format, settings.check_size)
    flags, name = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION, _bayer_encoding(message.format)
    if name is not None:
        flags = cv2.IMREAD_UNCHANGED  # ignores orientation tags, too
    elif is_16_bit_png(data):
        flags |= cv2.IMREAD_ANYDEPTH
    try:
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise FrameError(f"data cannot be decoded: {error.err or error}") from None
    if decoded is None or decoded.shape[:2] != (height, width):
        found = "nothing" if decoded is None else decoded.shape
        raise FrameError(f"data cannot be decoded: the header says {width} x {height}, the decoder gives {found}")
    if name is not None and decoded.ndim == 2:  # otherwise it was converted before it was compressed
        _check_sides(ENCODINGS[name], name, width, height)
        return _converted(decoded, ENCODINGS[name].code, settings, allocate(height, width))
    return _converted(np.asarray(decoded), cv2.COLOR_BGR2RGB, settings, allocate(height, width))


def _converted(values: npt.NDArray[Any], code: int | None, settings: ImageSettings, into: RgbImage) -> RgbImage:
    """8-bit or 16-bit values, converted with OpenCV into `into`. code: None: they are RGB."""
    if values.dtype != np.uint8:
        settings.to_8_bits(values if code is None else cv2.cvtColor(values, code), into)
    elif code is None:
        np.copyto(into, values)
    else:
        converted = cv2.cvtColor(values, code, dst=into)  # written to `into`, as it has the shape of the result
        assert np.may_share_memory(converted, into)
    return into


def _check_sides(encoding: Encoding, name: str, width: int, height: int) -> None:
    """Raise FrameError for an image that the encoding does not allow."""
    for side, value in (("width", width), ("height", height)):
        multiple = encoding.multiple if side == "width" or encoding.planes > 1 else 1
        if value % multiple or value < encoding.min_side:
            least = max(encoding.min_side, multiple)
            raise FrameError(
                f"{side} is {value}; allowed with encoding {name}: at least {least}, a multiple of {multiple}"
            )


def _bayer_encoding(file_format: str) -> str | None:
    """The encoding of a Bayer image that image_transport has compressed: `bayer_rggb8; jpeg compressed `."""
    name, separator, _ = file_format.partition(";")
    return name.strip() if separator and name.startswith("bayer_") and name.strip() in ENCODINGS else None


#: OpenCV names a Bayer pattern by the second and third pixel of the second row, ROS by the first two pixels of the
#: first two rows: bayer_rggb8 is OpenCV's BG. Ubuntu 22.04's OpenCV lacks the newer aliases in the ROS order.
_BAYER = {
    "rggb": cv2.COLOR_BayerBG2RGB,
    "bggr": cv2.COLOR_BayerRG2RGB,
    "gbrg": cv2.COLOR_BayerGR2RGB,
    "grbg": cv2.COLOR_BayerGB2RGB,
}

#: OpenCV's demosaicing does not write smaller images.
_MIN_BAYER_SIDE = 3

_UYVY = Encoding(2, cv2.COLOR_YUV2RGB_UYVY, multiple=2)
_YUYV = Encoding(2, cv2.COLOR_YUV2RGB_YUY2, multiple=2)

#: By value of sensor_msgs/Image.encoding. README.md lists them; a test compares both.
ENCODINGS = {
    "rgb8": Encoding(3),
    "bgr8": Encoding(3, cv2.COLOR_BGR2RGB),
    "rgba8": Encoding(4, cv2.COLOR_RGBA2RGB),
    "bgra8": Encoding(4, cv2.COLOR_BGRA2RGB),
    "mono8": Encoding(1, cv2.COLOR_GRAY2RGB),
    "8UC1": Encoding(1, cv2.COLOR_GRAY2RGB),
    "8UC3": Encoding(3, cv2.COLOR_BGR2RGB),
    "mono16": Encoding(1, cv2.COLOR_GRAY2RGB, 2),
    "rgb16": Encoding(3, None, 2),
    "bgr16": Encoding(3, cv2.COLOR_BGR2RGB, 2),
    "yuv422": _UYVY,
    "uyvy": _UYVY,
    "yuv422_yuy2": _YUYV,
    "yuyv": _YUYV,
    "nv12": Encoding(1, cv2.COLOR_YUV2RGB_NV12, planes=1.5, multiple=2),
    "nv21": Encoding(1, cv2.COLOR_YUV2RGB_NV21, planes=1.5, multiple=2),
    **{f"bayer_{order}8": Encoding(1, code, min_side=_MIN_BAYER_SIDE) for order, code in _BAYER.items()},
    **{f"bayer_{order}16": Encoding(1, code, 2, min_side=_MIN_BAYER_SIDE) for order, code in _BAYER.items()},
}
