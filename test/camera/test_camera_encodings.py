"""Every encoding that the camera writes is read back by the node's decoder."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from std_msgs.msg import Header

from multi_dnn_ros.camera.encodings import ENCODERS, compress, encode, resize
from multi_dnn_ros.camera.messages import CameraFormat, image_message
from multi_dnn_ros.cli.camera import ENCODINGS
from multi_dnn_ros.vision.image_decoding import ImageSettings, decode_compressed, decode_image

_SETTINGS = ImageSettings("front", 1 << 20)


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """An image without fine detail, which chroma subsampling and Bayer mosaics preserve."""
    small = np.random.default_rng(seed).integers(30, 226, (2, 2, 3), dtype=np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)


def received(picture: np.ndarray, **options: object) -> np.ndarray:
    message = image_message(picture, Header(frame_id="cam"), CameraFormat("front/image_raw", "cam", **options))
    assert message.header.frame_id == "cam"
    return decode_compressed(message, _SETTINGS) if options.get("compressed") else decode_image(message, _SETTINGS)


def test_the_command_offers_every_encoding() -> None:
    assert list(ENCODINGS) == list(ENCODERS), "ENCODINGS of cli/camera.py and ENCODERS of camera/encodings.py differ"


@pytest.mark.parametrize("encoding", ["rgb8", "bgr8", "rgba8", "bgra8"])
def test_rgb_is_unchanged(encoding: str) -> None:
    picture = np.random.default_rng(1).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    np.testing.assert_array_equal(received(picture, encoding=encoding), picture)


@pytest.mark.parametrize("encoding", ["mono8", "mono16"])
def test_mono_is_the_luminance(encoding: str) -> None:
    picture = np.random.default_rng(2).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    grey = received(picture, encoding=encoding)
    weights = np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(grey, np.repeat((picture @ weights)[..., None], 3, axis=2), atol=1.0)


@pytest.mark.parametrize(
    ("encoding", "tolerance"),
    [("yuv422", 6), ("yuv422_yuy2", 6), ("nv12", 6), *((f"bayer_{p}8", 8) for p in ("rggb", "bggr", "gbrg", "grbg"))],
)
def test_subsampled_colour_is_within_the_tolerance(encoding: str, tolerance: float) -> None:
    picture = smooth(96, 128)
    inner = (slice(2, -2), slice(2, -2))
    error = np.abs(received(picture, encoding=encoding)[inner].astype(int) - picture[inner])
    assert np.percentile(error, 99) <= tolerance


@pytest.mark.parametrize("image_format", ["jpeg", "png"])
def test_compressed_images_are_read_back(image_format: str) -> None:
    picture = smooth(48, 64)
    error = np.abs(received(picture, compressed=True, image_format=image_format).astype(int) - picture)
    assert np.percentile(error, 99) <= (0 if image_format == "png" else 5)


@settings(max_examples=60)
@given(
    encoding=st.sampled_from(sorted(ENCODERS)),
    width=st.integers(3, 40),
    height=st.integers(3, 40),
    seed=st.integers(0, 9),
)
def test_every_size_is_decoded_or_named_in_the_error(encoding: str, width: int, height: int, seed: int) -> None:
    try:
        encoded = encode(smooth(height, width, seed), encoding)
    except ValueError as error:
        assert encoding in str(error)  # noqa: PT017
        assert f"{width}x{height}" in str(error)  # noqa: PT017
        assert width % 2 or height % 2
        return
    assert len(encoded.data) == encoded.step * (height * 3 // 2 if encoding == "nv12" else height)
    assert received(smooth(height, width, seed), encoding=encoding).shape == (height, width, 3)


def test_an_unknown_encoding_is_named() -> None:
    with pytest.raises(ValueError, match=r"encoding is 'rgb9'; it must be one of rgb8"):
        encode(smooth(4, 4), "rgb9")


def test_resize_stretches_to_the_size() -> None:
    picture = smooth(48, 64)
    assert resize(picture, (64, 48)) is picture
    assert resize(picture, (32, 20)).shape == (20, 32, 3)
    assert resize(picture, (100, 90)).shape == (90, 100, 3)


def test_an_empty_image_cannot_be_compressed() -> None:
    with pytest.raises((ValueError, cv2.error)):
        compress(np.zeros((0, 0, 3), np.uint8), "png")
