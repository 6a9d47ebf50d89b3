"""Decoding of image messages: every encoding against an independent formula, and inconsistent messages."""

from __future__ import annotations

import array
import zlib
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.common.errors import FrameError
from multi_dnn_ros.vision.image_decoding import (
    ENCODINGS,
    ImageSettings,
    decode_compressed,
    decode_image,
)

SETTINGS = ImageSettings("front", 1 << 20)


def message(encoding, height, width, step, data, big_endian=False):
    return SimpleNamespace(
        encoding=encoding,
        height=height,
        width=width,
        step=step,
        is_bigendian=int(big_endian),
        data=array.array("B", data),
    )


def padded(rows, padding, rng):
    """Rows of bytes (n, row_bytes) as a data field, with `padding` random bytes after each row."""
    rubbish = rng.integers(0, 256, (len(rows), padding), dtype=np.uint8)
    return np.concatenate([rows, rubbish], axis=1).tobytes()


@st.composite
def shapes(draw, multiple=1, min_side=1):
    size = st.integers(max(1, -(-min_side // multiple)), 12).map(lambda n: n * multiple)
    return draw(size), draw(size), draw(st.integers(0, 9)), draw(st.integers(0, 2**32 - 1))


#: Channels and their order in RGB; of 16 bits if the name says so.
CHANNELS = {
    "rgb8": (3, [0, 1, 2]),
    "bgr8": (3, [2, 1, 0]),
    "8UC3": (3, [2, 1, 0]),
    "rgba8": (4, [0, 1, 2]),
    "bgra8": (4, [2, 1, 0]),
    "mono8": (1, [0, 0, 0]),
    "8UC1": (1, [0, 0, 0]),
    "mono16": (1, [0, 0, 0]),
    "rgb16": (3, [0, 1, 2]),
    "bgr16": (3, [2, 1, 0]),
}


@pytest.mark.parametrize("encoding", CHANNELS)
@given(shape=shapes(), big_endian=st.booleans())
@settings(max_examples=40)
def test_channels_are_reordered_and_16_bits_are_scaled(encoding, shape, big_endian):
    height, width, padding, seed = shape
    rng = np.random.default_rng(seed)
    channels, order = CHANNELS[encoding]
    bits = 16 if encoding.endswith("16") else 8
    values = rng.integers(0, 2**bits, (height, width, channels), dtype=np.uint16)
    stored = values.astype((">u2" if big_endian else "<u2") if bits == 16 else np.uint8)
    rows = np.frombuffer(stored.tobytes(), np.uint8).reshape(height, -1)
    step = rows.shape[1] + padding
    image = decode_image(message(encoding, height, width, step, padded(rows, padding, rng), big_endian), SETTINGS)
    assert image.dtype == np.uint8
    assert image.flags.c_contiguous
    assert image.flags.writeable
    np.testing.assert_array_equal(image, np.floor(values * (255 / (2**bits - 1)) + 0.5)[..., order])


def yuv_to_rgb(y, u, v):
    """BT.601, limited range (ITU-R BT.601-7, section 2.5), in floating point."""
    luma, blue, red = 1.164383 * (y - 16.0), u - 128.0, v - 128.0
    rgb = np.stack([luma + 1.596027 * red, luma - 0.391762 * blue - 0.812968 * red, luma + 2.017232 * blue], axis=-1)
    return np.clip(rgb, 0, 255)


@pytest.mark.parametrize(
    ("encoding", "order"), [("yuv422", "uyvy"), ("uyvy", "uyvy"), ("yuv422_yuy2", "yuyv"), ("yuyv", "yuyv")]
)
@given(shape=shapes(multiple=2))
@settings(max_examples=25)
def test_yuv_422(encoding, order, shape):
    height, width, padding, seed = shape
    rng = np.random.default_rng(seed)
    quads = rng.integers(16, 236, (height, width // 2, 4), dtype=np.uint8)
    image = decode_image(
        message(encoding, height, width, width * 2 + padding, padded(quads.reshape(height, -1), padding, rng)),
        SETTINGS,
    )
    luma = quads[..., [1, 3]] if order == "uyvy" else quads[..., [0, 2]]
    chroma = quads[..., [0, 2]] if order == "uyvy" else quads[..., [1, 3]]
    u, v = (np.repeat(chroma[..., k].astype(float), 2, axis=1) for k in (0, 1))
    assert np.abs(image - yuv_to_rgb(luma.reshape(height, width).astype(float), u, v)).max() <= 2


@pytest.mark.parametrize("encoding", ["nv12", "nv21"])
@given(shape=shapes(multiple=2))
@settings(max_examples=25)
def test_nv12(encoding, shape):
    height, width, padding, seed = shape
    rng = np.random.default_rng(seed)
    rows = rng.integers(16, 236, (height * 3 // 2, width), dtype=np.uint8)
    image = decode_image(message(encoding, height, width, width + padding, padded(rows, padding, rng)), SETTINGS)
    pairs = rows[height:].reshape(height // 2, width // 2, 2).astype(float).repeat(2, axis=0).repeat(2, axis=1)
    u, v = (pairs[..., 0], pairs[..., 1]) if encoding == "nv12" else (pairs[..., 1], pairs[..., 0])
    assert np.abs(image - yuv_to_rgb(rows[:height].astype(float), u, v)).max() <= 2


@pytest.mark.parametrize("order", ["rggb", "bggr", "gbrg", "grbg"])
@pytest.mark.parametrize("bits", [8, 16])
@given(shape=shapes(multiple=2, min_side=4))
@settings(max_examples=15)
def test_bayer_patterns_are_named_as_in_ros(order, bits, shape):
    """A mosaic of a single colour is decoded to that colour only with the right pattern."""
    height, width, padding, seed = shape
    rng = np.random.default_rng(seed)
    colour = rng.integers(0, 256, 3, dtype=np.uint8)
    mosaic = np.zeros((height, width), np.uint8)
    for k, letter in enumerate(order):
        mosaic[k // 2 :: 2, k % 2 :: 2] = colour["rgb".index(letter)]
    values = mosaic if bits == 8 else (mosaic.astype("<u2") * 257).view(np.uint8).reshape(height, -1)
    step = width * bits // 8 + padding
    image = decode_image(message(f"bayer_{order}{bits}", height, width, step, padded(values, padding, rng)), SETTINGS)
    np.testing.assert_array_equal(image, np.broadcast_to(colour, (height, width, 3)))


class Allocator:
    """Allocates memory filled with wrong values."""

    def __init__(self):
        self.given = []

    def __call__(self, height, width):
        self.given.append(np.full(height * width * 3 + 1, 0xA5, np.uint8))
        return self.given[-1][1:].reshape(height, width, 3)  # unaligned, as a slot may be


@pytest.mark.parametrize("encoding", list(ENCODINGS))
@pytest.mark.parametrize("padding", [0, 5])
def test_every_encoding_is_written_to_the_allocated_memory(encoding, padding):
    rows = 9 if encoding.startswith("nv") else 6
    step = 8 * ENCODINGS[encoding].pixel_bytes + padding
    frame = message(encoding, 6, 8, step, np.random.default_rng(1).integers(0, 256, rows * step, np.uint8).tobytes())
    allocator = Allocator()
    image = decode_image(frame, SETTINGS, allocator)
    (memory,) = allocator.given
    assert np.shares_memory(image, memory)
    np.testing.assert_array_equal(image, decode_image(frame, SETTINGS))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoding": "rgb9"}, ["encoding", "rgb9", "rgb8", "nv12"]),
        ({"width": 0}, ["width is 0", "at least 1"]),
        ({"width": 4294967295, "height": 4294967295}, ["4294967295", "parameter camera.front.max_pixels"]),
        ({"step": 11}, ["step is 11", "at least 12"]),
        ({"step": 13}, ["data has 36 bytes", "exactly 39"]),
        ({"encoding": "nv12", "height": 3}, ["height is 3", "multiple of 2"]),
        ({"encoding": "bayer_rggb8", "width": 2}, ["width is 2", "at least 3"]),
    ],
)
def test_inconsistent_fields_are_named(change, words):
    frame = message("rgb8", 3, 4, 12, range(36))
    for field, value in change.items():
        setattr(frame, field, value)
    with pytest.raises(FrameError) as error:
        decode_image(frame, SETTINGS)
    for word in words:
        assert word in str(error.value)


# -- 10 to 14 bits in 16


def wide_message(encoding, values, big_endian=False):
    """values (H, W) or (H, W, C) uint16."""
    data = values.astype(">u2" if big_endian else "<u2").tobytes()
    return message(encoding, *values.shape[:2], len(data) // len(values), data, big_endian)


@pytest.mark.parametrize(("largest", "bits", "warns"), [(4095, 16, True), (1023, 12, True), (65535, 16, False),
                                                        (4095, 12, False), (20_000, 16, False)])  # fmt: skip
def test_a_range_that_is_hardly_used_is_named_once(largest, bits, warns):
    lines = []
    settings = ImageSettings("left", 100, bits=bits, warn=lines.append)
    values = np.linspace(0, largest, 48).astype(np.uint16).reshape(6, 8)
    png = cv2.imencode(".png", values)[1].tobytes()
    for _ in range(2):
        decode_image(wide_message("mono16", values), settings)
        decode_compressed(SimpleNamespace(format="mono16; png compressed ", data=array.array("B", png)), settings)
    assert len(lines) == warns
    for line in lines:
        assert "camera.left.bits" in line
        assert str(largest) in line


# -- compressed


def picture(height=48, width=64):
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 4 % 256, y * 5 % 256, (x + y) * 2 % 256], axis=-1).astype(np.uint8)


def compressed(extension, image, *options):
    encoded, data = cv2.imencode(extension, image[..., ::-1], list(options))
    assert encoded
    return SimpleNamespace(format=extension[1:], data=array.array("B", data.tobytes()))


def test_png_is_exact_and_jpeg_close():
    image = picture()
    np.testing.assert_array_equal(decode_compressed(compressed(".png", image), SETTINGS), image)
    decoded = decode_compressed(compressed(".jpg", image, cv2.IMWRITE_JPEG_QUALITY, 95), SETTINGS)
    assert np.abs(decoded.astype(int) - image).mean() < 4


def mosaic_of(colour, order, bits):
    """(24, 32) values of `bits` bits, as a sensor behind this Bayer pattern sees one colour."""
    mosaic = np.zeros((24, 32), np.uint8 if bits == 8 else np.uint16)
    for k, letter in enumerate(order):
        mosaic[k // 2 :: 2, k % 2 :: 2] = colour["rgb".index(letter)] * (2**bits - 1) // 255
    return mosaic


@pytest.mark.parametrize("order", ["rggb", "bggr", "gbrg", "grbg"])
@pytest.mark.parametrize(("extension", "bits"), [(".png", 8), (".jpg", 8), (".png", 16), (".png", 12)])
def test_bayer_images_that_image_transport_has_compressed_have_colours(order, extension, bits):
    colour = np.array([200, 120, 40])
    data = cv2.imencode(extension, mosaic_of(colour, order, bits), [cv2.IMWRITE_JPEG_QUALITY, 100])[1].tobytes()
    name = "jpeg" if extension == ".jpg" else "png"
    frame = SimpleNamespace(
        format=f"bayer_{order}{8 if bits == 8 else 16}; {name} compressed ", data=array.array("B", data)
    )
    settings = ImageSettings("front", 1 << 20, bits=max(bits, 12))
    image = decode_compressed(frame, settings)
    assert np.abs(image[4:-4, 4:-4].astype(int) - colour).max() <= (3 if extension == ".jpg" else 1)
    allocator = Allocator()
    assert np.shares_memory(decode_compressed(frame, settings, allocator), allocator.given[0])


@pytest.mark.parametrize("extension", [".jpg", ".png"])
def test_a_file_truncated_anywhere_is_rejected(extension):
    whole = compressed(extension, picture())
    for length in [0, 1, 2, 3, 8, 20, 40, *range(60, len(whole.data) - 1, 97), len(whole.data) - 1]:
        with pytest.raises(FrameError, match="data"):
            decode_compressed(SimpleNamespace(format="", data=whole.data[:length]), SETTINGS)
    if extension == ".png":
        whole.data[len(whole.data) // 2] ^= 0x10
        with pytest.raises(FrameError, match="checksum"):
            decode_compressed(whole, SETTINGS)
    with pytest.raises(FrameError, match=r"47 49 46.*JPEG or PNG"):
        decode_compressed(SimpleNamespace(format="gif", data=array.array("B", b"GIF89a....")), SETTINGS)


def test_a_jpeg_of_a_thousand_scans_is_refused_because_it_takes_a_minute():
    jpeg = bytes(compressed(".jpg", picture()).data)
    scan = jpeg.index(b"\xff\xda")
    many = jpeg[:-2] + jpeg[scan : scan + 20] * 1000 + jpeg[-2:]
    with pytest.raises(FrameError, match="1001 scans; allowed: at most 64"):
        decode_compressed(SimpleNamespace(format="jpeg", data=array.array("B", many)), SETTINGS)


def test_size_is_checked_before_anything_is_decoded():
    jpeg = bytearray(compressed(".jpg", picture()).data)
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    with pytest.raises(FrameError, match=r"65535 x 65535.*max_pixels"):
        decode_compressed(SimpleNamespace(format="jpeg", data=array.array("B", jpeg)), SETTINGS)
    png = bytearray(compressed(".png", picture()).data)
    png[16:24] = b"\x7f\xff\xff\xff\x7f\xff\xff\xff"
    png[29:33] = zlib.crc32(png[12:29]).to_bytes(4, "big")
    with pytest.raises(FrameError, match=r"2147483647 x 2147483647.*max_pixels"):
        decode_compressed(SimpleNamespace(format="png", data=array.array("B", png)), SETTINGS)
