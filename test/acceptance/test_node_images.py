"""What the node sees of an image: its overlay topic shows the decoded picture, bad images are counted with a reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
    """The node with raw cameras `front` and `deep`, and a compressed one, `rear`; its only DNN reports nothing."""

    client: Client
    node: Node
    cameras: dict[str, Camera]
    overlays: dict[str, Recording]

    def decoded(self, message: Image | CompressedImage, raw: str = "front") -> Pixels:
        """(H, W, 3) RGB: how the node has decoded the image. raw: the camera of raw images."""
        camera = raw if isinstance(message, Image) else "rear"
        stamp = self.cameras[camera].send(message)
        return pixels_of(self.client.wait_for(lambda: self.overlays[camera].at(stamp), "the decoded image"))

    def undrawn(self, height: int, width: int) -> npt.NDArray[np.bool_]:
        """(H, W): the rows of an image of this size on which the overlay draws nothing."""
        pixels = noise(height, width)
        rows = np.all(self.decoded(raw_image(pixels)) == pixels, axis=(1, 2))
        assert rows.sum() >= height // 2, "the overlay covers the picture"
        return np.repeat(rows[:, None], width, axis=1)

    def check(self, message: Image | CompressedImage, expected: Pixels, where: Pixels, tolerance: float) -> None:
        """The pixels of `where`, (H, W), differ from (H, W, 3) or (H, W, 1) by at most `tolerance` levels."""
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
    cameras = {name: Camera(client, f"{name}/image_raw") for name in ("front", "deep")}
    cameras["rear"] = Camera(client, "rear/image_raw/compressed", CompressedImage)
    overlays = {name: client.record(node.topic(f"{name}/overlay"), Image) for name in cameras}
    for name, camera in cameras.items():
        camera.send_until_answered(overlays[name], jpeg(noise(64, 64)) if name == "rear" else noise(64, 64))
    return Setup(client, node, cameras, overlays)


def yuv(rgb: Pixels) -> tuple[Pixels, Pixels, Pixels]:
    """Y, U, V of BT.601 in the limited range, uint8; U and V of every second column."""
    r, g, b = (rgb[..., channel].astype(float) / 255 for channel in range(3))
    y = 0.299 * r + 0.587 * g + 0.114 * b
    u, v = (b - y) / 1.772, (r - y) / 1.402
    y, u, v = (np.round(plane).astype(np.uint8) for plane in (16 + 219 * y, 128 + 224 * u, 128 + 224 * v))
    return y, u[:, ::2], v[:, ::2]


def packed(rgb: Pixels, order: str) -> Pixels:
    """(H, W, 2): the values of two neighbours are in this order."""
    y, u, v = yuv(rgb)
    values = {"y": [y[:, 1::2], y[:, ::2]], "u": [u], "v": [v]}
    return np.stack([values[letter].pop() for letter in order], axis=2).reshape(*y.shape, 2)


def planar(rgb: Pixels, order: str) -> Pixels:
    """(1.5 H, W): all of Y, then U and V of every second row in this order."""
    planes = dict(zip("yuv", yuv(rgb), strict=True))
    pairs = np.stack([planes[letter][::2] for letter in order], axis=2)
    return np.vstack((planes["y"], pairs.reshape(-1, rgb.shape[1])))


def bayer(rgb: Pixels, order: str) -> Pixels:
    """(H, W): of each pixel the colour that the pattern has there."""
    mosaic = np.empty(rgb.shape[:2], rgb.dtype)
    for place, colour in enumerate(order):
        mosaic[place // 2 :: 2, place % 2 :: 2] = rgb[place // 2 :: 2, place % 2 :: 2, "rgb".index(colour)]
    return mosaic


#: README.md's encodings: (H, W, 3) RGB -> the array of the message.
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
_YUV: dict[str, Callable[[Pixels], Pixels]] = {
    **{encoding: partial(packed, order="uyvy") for encoding in ("uyvy", "yuv422")},
    **{encoding: partial(packed, order="yuyv") for encoding in ("yuyv", "yuv422_yuy2")},
    "nv12": partial(planar, order="uv"),
    "nv21": partial(planar, order="vu"),
}
_BAYER: dict[str, Callable[[Pixels], Pixels]] = {
    f"bayer_{order}{bits}": partial(bayer, order=order)
    for order in ("rggb", "bggr", "gbrg", "grbg")
    for bits in (8, 16)
}


@pytest.mark.parametrize("encoding", [*_INTERLEAVED, *_YUV, *_BAYER])
def test_raw_images_of_every_encoding(setup: Setup, encoding: str) -> None:
    """With padding, in both orders of bytes, and of odd sizes where the encoding has these."""
    dtype = np.uint16 if "16" in encoding else np.uint8
    height, width = (98, 130) if encoding in _YUV else (97, 131)
    tolerance = 4 if encoding in _YUV else int(dtype == np.uint16 or encoding in _BAYER)
    where = setup.undrawn(height, width) & (encoding in _INTERLEAVED or insides(height, width))
    for padding, big_endian in itertools.product((0, 6), (False, True)):
        rgb = (noise if encoding in _INTERLEAVED else blocks)(height, width, dtype=dtype)
        message = raw_image({**_INTERLEAVED, **_YUV, **_BAYER}[encoding](rgb), encoding, padding, big_endian)
        message.height = height
        grey = encoding.startswith(("mono", "8UC1"))
        expected = (rgb[..., :1] if grey else rgb) / (np.iinfo(dtype).max / 255)
        setup.check(message, expected, where, tolerance)


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


def written_by_pillow(rgb: Pixels, mode: str, orientation: int) -> CompressedImage:
    exif = PilImage.Exif()
    exif[0x0112] = orientation
    file = BytesIO()
    PilImage.fromarray(rgb).convert(mode).save(file, "JPEG", quality=95, exif=exif)
    return CompressedImage(format="jpeg", data=file.getvalue())


def test_jpeg_files_of_every_kind(setup: Setup) -> None:
    rgb = smooth(141, 203)
    rows = setup.undrawn(141, 203)
    files = {
        "baseline": jpeg(rgb),
        "grey": jpeg(np.ascontiguousarray(rgb[..., 0])),
        "progressive": jpeg(rgb, cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        "restart markers": jpeg(rgb, cv2.IMWRITE_JPEG_RST_INTERVAL, 3),
        "CMYK": written_by_pillow(rgb, "CMYK", 1),
        "orientation": written_by_pillow(rgb, "RGB", 6),  # pixels stay where the CameraInfo says
    }
    for name, file in files.items():
        setup.check(file, rgb[..., :1] if name == "grey" else rgb, rows, 12)


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
    where = insides(97, 131) & setup.undrawn(97, 131)
    for order in ("rggb", "gbrg"):
        png = cv2.imencode(".png", bayer(rgb, order))[1].tobytes()
        setup.check(CompressedImage(format=f"bayer_{order}8; png compressed ", data=png), rgb, where, 1)
    file = CompressedImage(format="bayer_rggb8; jpeg compressed ", data=jpeg(bayer(rgb, "rggb")).data)
    assert np.ptp(setup.decoded(file), axis=2).max() > 30


def test_values_of_10_bits_in_16(setup: Setup) -> None:
    """The parameter `bits` of a camera."""
    values = noise(97, 131, 1, np.uint16) >> 6
    shown = setup.decoded(raw_image(values, "mono16"), "deep").astype(float)
    assert np.abs(shown - values / (1023 / 255))[setup.undrawn(97, 131)].max() <= 1


def test_results_have_the_stamps_of_their_images_whatever_they_are(setup: Setup) -> None:
    dnn = DnnOnCamera(setup.node).connect()
    now, second = setup.client.new_stamp(), 1_000_000_000
    for stamp in (now, now - 5 * second, now + 3600 * second, 0, now - 30 * 365 * 86400 * second, 1, now + second):
        assert dnn.answer(noise(48, 64), stamp).header.frame_id == "camera_optical"
    dnn.results.check_unique()
