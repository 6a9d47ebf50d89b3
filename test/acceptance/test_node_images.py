"""What the node sees of an image: its overlay topic shows the decoded picture, bad images are counted with a reason."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from harness import ALL, Camera, Client, NodeProcess, Recording, pixels_of, raw_image
from PIL import Image as PilImage
from sensor_msgs.msg import CompressedImage, Image
from vision_msgs.msg import Detection2DArray

Pixels = npt.NDArray[Any]

_random = np.random.default_rng(1)


def noise(height: int, width: int, channels: int = 3, dtype: type = np.uint8) -> Pixels:
    """An image of which each pixel is random."""
    return _random.integers(0, np.iinfo(dtype).max, (height, width, channels), dtype, endpoint=True)


def blocks(height: int, width: int, dtype: type = np.uint8) -> Pixels:
    """(H, W, 3) of squares of 16 pixels in one colour each, from the middle of the range of values."""
    top = np.iinfo(dtype).max
    colours = _random.integers(top // 5, top - top // 5, (-(-height // 16), -(-width // 16), 3), dtype)
    return colours.repeat(16, axis=0).repeat(16, axis=1)[:height, :width]


def insides(height: int, width: int) -> npt.NDArray[np.bool_]:
    """(H, W): the pixels of `blocks` of which no neighbour within 3 pixels has another colour."""
    rows, columns = (np.minimum(np.arange(n) % 16, 15 - np.arange(n) % 16) >= 3 for n in (height, width))
    return rows[:, None] & columns[None, :]


@dataclass
class Setup:
    """The node with two cameras, whose only DNN reports nothing."""

    client: Client
    node: NodeProcess
    raw: Camera
    raw_overlay: Recording
    files: Camera
    files_overlay: Recording

    def decoded(self, message: Image, check_size: bool = True) -> Pixels:
        """(H, W, 3) RGB: how the node has decoded a raw image."""
        shown = pixels_of(self.client.answer(self.raw, message, self.raw_overlay))
        assert not check_size or shown.shape == (message.height, message.width, 3)
        return shown

    def decoded_file(self, data: bytes, format_: str = "jpeg") -> Pixels:
        """(H, W, 3) RGB: how the node has decoded a JPEG or PNG file."""
        message = CompressedImage(format=format_, data=data)
        return pixels_of(self.client.answer(self.files, message, self.files_overlay))

    def undrawn(self, height: int, width: int) -> npt.NDArray[np.bool_]:
        """(H,): the rows of an image of this size on which the overlay draws nothing."""
        pixels = noise(height, width)
        rows = np.all(self.decoded(raw_image(pixels)) == pixels, axis=(1, 2))
        assert rows.sum() >= height // 2, "the overlay covers the picture"
        return rows


@pytest.fixture(scope="module")
def setup(client: Client, start_node: Callable[..., NodeProcess]) -> Setup:
    node = start_node(
        {
            "cameras": ["front", "rear"],
            "camera": {"front": {"max_pixels": 400_000}, "rear": {"transport": "compressed"}},
            "dnns": ["object"],
            "dnn": {"object": {"score_threshold": 1.0}},
        }
    )
    client.wait_until_active()
    raw = client.camera("front/image_raw")
    files = client.camera("rear/image_raw/compressed", CompressedImage)
    overlays = [client.record(node.topic(f"{camera}/overlay"), Image) for camera in ("front", "rear")]
    client.connect(raw, noise(64, 64), overlays[0])
    jpeg = CompressedImage(format="jpeg", data=cv2.imencode(".jpg", noise(64, 64))[1].tobytes())
    client.connect(files, jpeg, overlays[1])
    return Setup(client, node, raw, overlays[0], files, overlays[1])


def assert_same(shown: Pixels, expected: Pixels, where: Pixels, tolerance: float, what: str) -> None:
    """The pixels of `where`, (H, W) or (H,), differ by at most `tolerance` levels."""
    assert shown.shape == expected.shape, what
    difference = np.abs(shown.astype(float) - expected.astype(float))[where]
    assert difference.max() <= tolerance, f"{what}: pixels differ by up to {difference.max()} levels"


#: Encoding: (rows, width, 3) RGB -> the array of the message. README.md lists the encodings.
_EIGHT_BIT: dict[str, Callable[[Pixels], Pixels]] = {
    "rgb8": lambda rgb: rgb,
    "bgr8": lambda rgb: rgb[..., ::-1],
    "8UC3": lambda rgb: rgb[..., ::-1],
    "rgba8": lambda rgb: np.dstack((rgb, noise(*rgb.shape[:2], 1))),
    "bgra8": lambda rgb: np.dstack((rgb[..., ::-1], noise(*rgb.shape[:2], 1))),
    "mono8": lambda rgb: rgb[..., 0],
    "8UC1": lambda rgb: rgb[..., 0],
}
_SIXTEEN_BIT: dict[str, Callable[[Pixels], Pixels]] = {
    "rgb16": lambda rgb: rgb,
    "bgr16": lambda rgb: rgb[..., ::-1],
    "mono16": lambda rgb: rgb[..., 0],
}


@pytest.mark.parametrize("encoding", _EIGHT_BIT)
def test_8_bit_images_arrive_unchanged(setup: Setup, encoding: str) -> None:
    for height, width, padding in ((96, 128, 0), (97, 131, 0), (96, 129, 7)):
        rows = setup.undrawn(height, width)
        rgb = noise(height, width)
        expected = rgb[..., :1].repeat(3, axis=2) if encoding in ("mono8", "8UC1") else rgb
        shown = setup.decoded(raw_image(_EIGHT_BIT[encoding](rgb), encoding, padding))
        assert_same(shown, expected, rows, 0, f"{width} x {height}, padding {padding}")


@pytest.mark.parametrize("encoding", _SIXTEEN_BIT)
def test_16_bit_images_keep_their_range_in_both_byte_orders(setup: Setup, encoding: str) -> None:
    height, width = 97, 131
    rows = setup.undrawn(height, width)
    for padding, big_endian in itertools.product((0, 6), (False, True)):
        rgb = noise(height, width, dtype=np.uint16)
        expected = (rgb[..., :1].repeat(3, axis=2) if encoding == "mono16" else rgb) / 257
        shown = setup.decoded(raw_image(_SIXTEEN_BIT[encoding](rgb), encoding, padding, big_endian))
        assert_same(shown, expected, rows, 1, f"padding {padding}, big-endian {big_endian}")


def yuv(rgb: Pixels) -> tuple[Pixels, Pixels, Pixels]:
    """Y, U, V of BT.601 in the limited range, uint8."""
    r, g, b = (rgb[..., channel].astype(float) / 255 for channel in range(3))
    y = 0.299 * r + 0.587 * g + 0.114 * b
    u, v = (b - y) / 1.772, (r - y) / 1.402
    return tuple(np.round(plane).astype(np.uint8) for plane in (16 + 219 * y, 128 + 224 * u, 128 + 224 * v))


def packed(first: Pixels, second: Pixels, third: Pixels, fourth: Pixels) -> Pixels:
    """(H, W, 2) of bytes: the four planes (H, W / 2) after one another for each pair of pixels."""
    return np.stack((first, second, third, fourth), axis=2).reshape(len(first), -1, 2)


def test_yuv_images_have_the_colours_of_bt_601(setup: Setup) -> None:
    height, width = 96, 130
    rows = setup.undrawn(height, width)
    rgb = blocks(height, width)
    y, u, v = yuv(rgb)
    u, v = u[:, ::2], v[:, ::2]
    uyvy, yuyv = packed(u, y[:, ::2], v, y[:, 1::2]), packed(y[:, ::2], u, y[:, 1::2], v)
    planes = {name: np.stack(order, axis=2)[::2].reshape(height // 2, width)
              for name, order in (("nv12", (u, v)), ("nv21", (v, u)))}  # fmt: skip
    cases = {"yuv422": uyvy, "uyvy": uyvy, "yuv422_yuy2": yuyv, "yuyv": yuyv}
    cases |= {name: np.vstack((y, plane)) for name, plane in planes.items()}
    for (encoding, values), padding in itertools.product(cases.items(), (0, 6)):
        message = raw_image(values, encoding, padding)
        message.height = height  # of a planar image, which has more rows of data
        shown = setup.decoded(message)
        assert_same(shown, rgb, insides(height, width) & rows[:, None], 4, f"{encoding}, padding {padding}")


def test_bayer_images_have_the_colours_of_their_pattern(setup: Setup) -> None:
    height, width = 97, 131
    rows = setup.undrawn(height, width)
    for order, dtype, padding in itertools.product(("rggb", "bggr", "gbrg", "grbg"), (np.uint8, np.uint16), (0, 4)):
        rgb = blocks(height, width, dtype)
        mosaic = np.empty((height, width), dtype)
        for place, colour in enumerate(order):
            mosaic[place // 2 :: 2, place % 2 :: 2] = rgb[place // 2 :: 2, place % 2 :: 2, "rgb".index(colour)]
        bits = 8 * mosaic.itemsize
        shown = setup.decoded(raw_image(mosaic, f"bayer_{order}{bits}", padding))
        expected = rgb if bits == 8 else rgb / 257
        assert_same(shown, expected, insides(height, width) & rows[:, None], 1, f"{order}, {bits} bits")


def test_the_size_may_change_with_every_image(setup: Setup) -> None:
    for height, width in ((480, 640), (1, 1), (3, 400), (200, 2), (97, 131), (480, 640)):
        pixels = noise(height, width)
        shown = setup.decoded(raw_image(pixels))
        if height > 90:
            assert np.array_equal(shown[: height // 2], pixels[: height // 2])


def smooth(height: int, width: int) -> Pixels:
    """An RGB picture that JPEG changes only a little."""
    return cv2.resize(noise(4, 5), (width, height), interpolation=cv2.INTER_CUBIC)


def jpeg(pixels: Pixels, *settings: int) -> bytes:
    """A JPEG file of RGB or grey pixels."""
    picture = pixels if pixels.ndim == 2 else pixels[..., ::-1]
    return cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 95, *settings])[1].tobytes()


def turned(file: bytes) -> bytes:
    """The JPEG file with an EXIF tag that says: rotate by 90 degrees."""
    tiff = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    exif = b"Exif\0\0" + tiff
    return file[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + file[2:]


def test_jpeg_files_of_every_kind(setup: Setup) -> None:
    height, width = 141, 203
    rows = setup.undrawn(height, width)
    rgb = smooth(height, width)
    grey = np.ascontiguousarray(rgb[..., 0])
    cmyk = BytesIO()
    PilImage.fromarray(rgb).convert("CMYK").save(cmyk, "JPEG", quality=95)
    baseline = jpeg(rgb)
    files = {
        "baseline": (baseline, rgb),
        "grey": (jpeg(grey), grey[..., None].repeat(3, axis=2)),
        "progressive": (jpeg(rgb, cv2.IMWRITE_JPEG_PROGRESSIVE, 1), rgb),
        "restart markers": (jpeg(rgb, cv2.IMWRITE_JPEG_RST_INTERVAL, 3), rgb),
        "CMYK": (cmyk.getvalue(), rgb),
        "orientation": (turned(baseline), rgb),  # pixels stay where the CameraInfo says
    }
    for name, (file, expected) in files.items():
        shown = setup.decoded_file(file)
        assert shown.shape == expected.shape, name
        difference = np.abs(shown[rows].astype(float) - expected[rows])
        assert difference.mean() < 4, f"{name}: {difference.mean()} levels on average"


def test_png_files_of_8_and_16_bits(setup: Setup) -> None:
    height, width = 97, 131
    rows = setup.undrawn(height, width)
    for dtype, channels in itertools.product((np.uint8, np.uint16), (1, 3, 4)):
        pixels = noise(height, width, channels, dtype)
        rgb = pixels.repeat(3, axis=2) if channels == 1 else pixels[..., 2::-1]
        file = cv2.imencode(".png", pixels)[1].tobytes()
        expected = rgb if dtype == np.uint8 else rgb / 257
        shown = setup.decoded_file(file, "rgb8; png compressed bgr8")
        assert_same(shown, expected, rows, 1, f"{np.dtype(dtype)}, {channels} channels")


def _bad_raw_images() -> list[Image]:
    """Without a size, with a wrong step or length, of an unknown encoding, too large."""
    images = [raw_image(noise(48, 64)) for _ in range(6)]
    no_width, no_height, small_step, short, long, unknown = images
    no_width.width, no_width.step, no_width.data = 0, 0, b""
    no_height.height, no_height.data = 0, b""
    small_step.step = 191
    short.data = bytes(10)
    long.data = bytes(9217)
    unknown.encoding = "32FC1"
    return [*images, raw_image(np.zeros((633, 633, 3), np.uint8))]


@pytest.mark.parametrize("transport", ["raw", "compressed"])
def test_bad_images_are_counted_and_the_next_good_one_is_answered(setup: Setup, transport: str) -> None:
    client = setup.client
    if transport == "raw":
        camera, overlay, name = setup.raw, setup.raw_overlay, "front"
        bad: list[Any] = _bad_raw_images()
        good: Any = raw_image(noise(48, 64))
    else:
        camera, overlay, name = setup.files, setup.files_overlay, "rear"
        file = jpeg(smooth(48, 64))
        png = cv2.imencode(".png", noise(48, 64))[1].tobytes()
        contents = (b"", b"no image", file[: len(file) // 2], file[:-2], png[: len(png) // 2], file[:20], png[:20])
        bad = [CompressedImage(format="jpeg", data=content) for content in contents]
        good = CompressedImage(format="jpeg", data=file)
    results = client.record(setup.node.topic(f"{name}/object/detections"), Detection2DArray, ALL)
    client.answer(camera, good, overlay)
    before = client.settled("object", name)
    received, refused = (client.status(f"camera {name}").number(key) for key in ("received", "bad images"))
    for number, image in enumerate(bad, 1):
        stamp = camera.send(image)
        client.wait_for(
            lambda count=refused + number: client.status(f"camera {name}").number("bad images") == count,
            f"bad image number {number} to be counted",
        )
        client.answer(camera, good, overlay)
        assert results.at(stamp) is None
    account = client.settled("object", name).since(before)
    assert account.offered == 2 * len(bad)
    assert account.published == len(bad)
    assert account.dropped == {"bad_image": len(bad)}
    status = client.status(f"camera {name}")
    assert status.number("received") - received == 2 * len(bad)
    assert status.number("bad images") - refused == len(bad)


def test_the_log_names_the_field_of_a_bad_image(setup: Setup) -> None:
    """At most one line in 5 s: so one image at a time, until its line is there."""
    client = setup.client
    image = raw_image(noise(48, 64))
    image.encoding = "32FC1"

    def named() -> bool:
        setup.raw.send(image)
        client.spin(0.5)
        return "front" in setup.node.log and "32FC1" in setup.node.log

    client.wait_for(named, "a line with the encoding and the camera in the log")


def test_results_have_the_stamps_of_their_images_whatever_they_are(setup: Setup) -> None:
    client = setup.client
    results = client.record(setup.node.topic("front/object/detections"), Detection2DArray)
    now = client.new_stamp()
    second = 1_000_000_000
    for stamp in (now, now - 5 * second, now + 3600 * second, 0, now - 30 * 365 * 86400 * second, 1, now + second):
        found = client.answer(setup.raw, raw_image(noise(48, 64)), results, stamp)
        assert found.header.frame_id == "camera_optical"
    account = client.settled("object")
    assert account.dropped.keys() <= {"bad_image", "overwritten"}
    results.check_unique()
