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
from harness import Camera, Client, DnnOnCamera, Node, Recording, pixels_of, raw_image
from PIL import Image as PilImage
from sensor_msgs.msg import CompressedImage, Image

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
    """The node with a raw camera `front` and a compressed one `rear`; its only DNN reports nothing."""

    client: Client
    node: Node
    cameras: dict[str, Camera]
    overlays: dict[str, Recording]

    def decoded(self, message: Image | CompressedImage) -> Pixels:
        """(H, W, 3) RGB: how the node has decoded the image."""
        camera = "front" if isinstance(message, Image) else "rear"
        stamp = self.cameras[camera].send(message)
        return pixels_of(self.client.wait_for(lambda: self.overlays[camera].at(stamp), "the decoded image"))

    def undrawn(self, height: int, width: int) -> npt.NDArray[np.bool_]:
        """(H,): the rows of an image of this size on which the overlay draws nothing."""
        pixels = noise(height, width)
        rows = np.all(self.decoded(raw_image(pixels)) == pixels, axis=(1, 2))
        assert rows.sum() >= height // 2, "the overlay covers the picture"
        return rows

    def check(self, message: Image | CompressedImage, expected: Pixels, where: Pixels, tolerance: float) -> None:
        """The pixels of `where`, (H, W) or (H,), differ from (H, W, 3) or (H, W, 1) by at most `tolerance` levels."""
        shown = self.decoded(message)
        assert shown.shape == (*expected.shape[:2], 3)
        difference = np.abs(shown.astype(float) - expected.astype(float))[where]
        assert difference.max() <= tolerance, f"pixels differ by up to {difference.max()} levels"


@pytest.fixture(scope="module")
def setup(client: Client, start_node: Callable[..., Node]) -> Setup:
    node = start_node(
        {
            "cameras": ["front", "rear", "deep"],
            "camera": {"front": {"max_pixels": 400_000}, "rear": {"transport": "compressed"}, "deep": {"bits": 10}},
            "dnns": ["object"],
            "dnn": {"object": {"score_threshold": 1.0}},
        }
    )
    node.wait_until_active()
    front = Camera(client, "front/image_raw")
    rear = Camera(client, "rear/image_raw/compressed", CompressedImage)
    overlays = {name: client.record(node.topic(f"{name}/overlay"), Image) for name in ("front", "rear")}
    front.send_until_answered(overlays["front"])
    rear.send_until_answered(overlays["rear"], jpeg(noise(64, 64)))
    return Setup(client, node, {"front": front, "rear": rear}, overlays)


#: README.md's encodings of interleaved channels: (H, W, 3) RGB -> the array of the message.
_INTERLEAVED: dict[str, Callable[[Pixels], Pixels]] = {
    "rgb8": lambda rgb: rgb,
    "bgr8": lambda rgb: rgb[..., ::-1],
    "8UC3": lambda rgb: rgb[..., ::-1],
    "rgba8": lambda rgb: np.dstack((rgb, noise(*rgb.shape[:2], 1))),
    "bgra8": lambda rgb: np.dstack((rgb[..., ::-1], noise(*rgb.shape[:2], 1))),
    "mono8": lambda rgb: rgb[..., 0],
    "8UC1": lambda rgb: rgb[..., 0],
    "rgb16": lambda rgb: rgb,
    "bgr16": lambda rgb: rgb[..., ::-1],
    "mono16": lambda rgb: rgb[..., 0],
}


@pytest.mark.parametrize("encoding", _INTERLEAVED)
def test_pixels_arrive_unchanged(setup: Setup, encoding: str) -> None:
    dtype = np.uint16 if "16" in encoding else np.uint8
    channels = 1 if encoding in ("mono8", "8UC1", "mono16") else 3
    for (height, width), padding, big_endian in itertools.product(((96, 128), (97, 131)), (0, 6), (False, True)):
        rows = setup.undrawn(height, width)
        rgb = noise(height, width, dtype=dtype)
        expected = rgb[..., :channels] / (np.iinfo(dtype).max / 255)
        image = raw_image(_INTERLEAVED[encoding](rgb), encoding, padding, big_endian)
        setup.check(image, expected, rows, 1 if dtype == np.uint16 else 0)


def yuv(rgb: Pixels) -> tuple[Pixels, ...]:
    """Y, U, V of BT.601 in the limited range, uint8."""
    r, g, b = (rgb[..., channel].astype(float) / 255 for channel in range(3))
    y = 0.299 * r + 0.587 * g + 0.114 * b
    u, v = (b - y) / 1.772, (r - y) / 1.402
    return tuple(np.round(plane).astype(np.uint8) for plane in (16 + 219 * y, 128 + 224 * u, 128 + 224 * v))


def test_yuv_images_have_the_colours_of_bt_601(setup: Setup) -> None:
    height, width = 96, 130
    where = insides(height, width) & setup.undrawn(height, width)[:, None]
    rgb = blocks(height, width)
    y, u, v = yuv(rgb)
    u, v = u[:, ::2], v[:, ::2]
    orders = {
        "yuv422": (u, y[:, ::2], v, y[:, 1::2]),
        "yuv422_yuy2": (y[:, ::2], u, y[:, 1::2], v),
        "nv12": (u, v),
        "nv21": (v, u),
    }
    orders |= {"uyvy": orders["yuv422"], "yuyv": orders["yuv422_yuy2"]}
    for (encoding, planes), padding in itertools.product(orders.items(), (0, 6)):
        values = np.stack(planes, axis=2)
        if len(planes) == 2:  # all of Y, then U and V of every second row
            message = raw_image(np.vstack((y, values[::2].reshape(height // 2, width))), encoding, padding)
            message.height = height
        else:
            message = raw_image(values.reshape(height, width, 2), encoding, padding)
        setup.check(message, rgb, where, 4)


def bayer(rgb: Pixels, order: str) -> Pixels:
    """(H, W): of each pixel the colour that the pattern has there."""
    mosaic = np.empty(rgb.shape[:2], rgb.dtype)
    for place, colour in enumerate(order):
        mosaic[place // 2 :: 2, place % 2 :: 2] = rgb[place // 2 :: 2, place % 2 :: 2, "rgb".index(colour)]
    return mosaic


def test_bayer_images_have_the_colours_of_their_pattern(setup: Setup) -> None:
    height, width = 97, 131
    where = insides(height, width) & setup.undrawn(height, width)[:, None]
    for order, dtype, padding in itertools.product(("rggb", "bggr", "gbrg", "grbg"), (np.uint8, np.uint16), (0, 4)):
        rgb = blocks(height, width, dtype)
        image = raw_image(bayer(rgb, order), f"bayer_{order}{8 * rgb.itemsize}", padding)
        setup.check(image, rgb / (np.iinfo(dtype).max / 255), where, 1)


def test_the_size_may_change_with_every_image(setup: Setup) -> None:
    for height, width in ((480, 640), (1, 1), (3, 400), (200, 2), (97, 131), (480, 640)):
        pixels = noise(height, width)
        shown = setup.decoded(raw_image(pixels))
        assert shown.shape == pixels.shape
        assert height < 90 or np.array_equal(shown[: height // 2], pixels[: height // 2])


def smooth(height: int, width: int) -> Pixels:
    """An RGB picture that JPEG changes only a little."""
    return cv2.resize(noise(4, 5), (width, height), interpolation=cv2.INTER_CUBIC)


def jpeg(pixels: Pixels, *settings: int) -> CompressedImage:
    """A JPEG file of RGB or grey pixels."""
    picture = pixels if pixels.ndim == 2 else pixels[..., ::-1]
    file = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 95, *settings])[1]
    return CompressedImage(format="jpeg", data=file.tobytes())


def turned(file: bytes) -> bytes:
    """The JPEG file with an EXIF tag that says: rotate by 90 degrees."""
    exif = b"Exif\0\0MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    return file[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + file[2:]


def test_jpeg_files_of_every_kind(setup: Setup) -> None:
    rgb = smooth(141, 203)
    rows = setup.undrawn(141, 203)
    cmyk = BytesIO()
    PilImage.fromarray(rgb).convert("CMYK").save(cmyk, "JPEG", quality=95)
    files = {
        "baseline": jpeg(rgb),
        "grey": jpeg(np.ascontiguousarray(rgb[..., 0])),
        "progressive": jpeg(rgb, cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        "restart markers": jpeg(rgb, cv2.IMWRITE_JPEG_RST_INTERVAL, 3),
        "CMYK": CompressedImage(format="jpeg", data=cmyk.getvalue()),
        # Pixels stay where the CameraInfo says.
        "orientation": CompressedImage(format="jpeg", data=turned(bytes(jpeg(rgb).data))),
    }
    for name, file in files.items():
        expected = rgb[..., :1] if name == "grey" else rgb
        shown = setup.decoded(file)
        assert shown.shape == rgb.shape, name
        difference = np.abs(shown[rows].astype(float) - expected[rows]).mean()
        assert difference < 4, f"{name}: {difference} levels on average"


def test_png_files_of_8_and_16_bits(setup: Setup) -> None:
    rows = setup.undrawn(97, 131)
    for dtype, channels in itertools.product((np.uint8, np.uint16), (1, 3, 4)):
        pixels = noise(97, 131, channels, dtype)
        expected = pixels[..., 2::-1] / (np.iinfo(dtype).max / 255)
        file = cv2.imencode(".png", pixels)[1].tobytes()
        setup.check(CompressedImage(format="rgb8; png compressed bgr8", data=file), expected, rows, 1)


def bad_raw_images() -> list[Image]:
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


def bad_files() -> list[CompressedImage]:
    """Nothing, not an image, or cut off."""
    file = bytes(jpeg(smooth(48, 64)).data)
    png = cv2.imencode(".png", noise(48, 64))[1].tobytes()
    contents = (b"", b"no image", file[: len(file) // 2], file[:-2], png[: len(png) // 2], file[:20], png[:20])
    return [CompressedImage(format="jpeg", data=content) for content in contents]


@pytest.mark.parametrize("name", ["front", "rear"])
def test_bad_images_are_counted_and_the_next_good_one_is_answered(setup: Setup, name: str) -> None:
    bad = bad_raw_images() if name == "front" else bad_files()
    good = raw_image(noise(48, 64)) if name == "front" else jpeg(smooth(48, 64))
    dnn = DnnOnCamera(setup.node, name=name, camera=setup.cameras[name]).connect(good)
    dnn.begin()
    for number, image in enumerate(bad, 1):
        stamp = dnn.camera.send(image)
        setup.client.wait_for(
            lambda n=number: dnn.account()["bad_image"] == n, f"bad image number {number} to be counted"
        )
        dnn.answer(good)
        assert dnn.results.at(stamp) is None
    assert dnn.check("bad_image") == {"offered": 2 * len(bad), "published": len(bad), "bad_image": len(bad)}
    assert f"camera {name}" in setup.node.log, "the log names the camera and the field"


def test_the_log_names_the_parameter_that_an_image_exceeds(setup: Setup) -> None:
    """The log has at most one line in 5 s."""
    large = np.zeros((633, 633, 3), np.uint8)
    named = "(parameter camera.front.max_pixels)"
    setup.cameras["front"].send_until(lambda: named in setup.node.log, "the parameter in the log", 0.5, large)


def test_compressed_bayer_images_are_in_colour(setup: Setup) -> None:
    """image_transport says in `format` what the image was before it was compressed."""
    rgb = blocks(97, 131)
    where = insides(97, 131) & setup.undrawn(97, 131)[:, None]
    for order in ("rggb", "gbrg"):
        png = cv2.imencode(".png", bayer(rgb, order))[1].tobytes()
        setup.check(CompressedImage(format=f"bayer_{order}8; png compressed ", data=png), rgb, where, 1)
    file = CompressedImage(format="bayer_rggb8; jpeg compressed ", data=jpeg(bayer(rgb, "rggb")).data)
    assert np.ptp(setup.decoded(file), axis=2).max() > 30


def test_values_of_10_bits_in_16(setup: Setup) -> None:
    """The parameter `bits` of a camera."""
    camera = Camera(setup.client, "deep/image_raw")
    overlay = setup.client.record(setup.node.topic("deep/overlay"), Image)
    values = noise(97, 131, 1, np.uint16) >> 6
    camera.send_until_answered(overlay, raw_image(values, "mono16"))
    shown = pixels_of(overlay.at(camera.sent[-1])).astype(float)[: 97 // 2]
    assert np.abs(shown - values[: 97 // 2] / (1023 / 255)).max() <= 1


def test_results_have_the_stamps_of_their_images_whatever_they_are(setup: Setup) -> None:
    dnn = DnnOnCamera(setup.node).connect()
    now, second = setup.client.new_stamp(), 1_000_000_000
    for stamp in (now, now - 5 * second, now + 3600 * second, 0, now - 30 * 365 * 86400 * second, 1, now + second):
        assert dnn.answer(noise(48, 64), stamp).header.frame_id == "camera_optical"
    dnn.results.check_unique()
