"""Every encoding that the camera writes is read back by the node's decoder."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from std_msgs.msg import Header

from multi_dnn_ros.camera.messages import COMPRESSED, ENCODERS, image_message
from multi_dnn_ros.cli.camera import ENCODINGS
from multi_dnn_ros.vision.image_decoding import ImageSettings, decode_compressed, decode_image

#: Largest difference of 99 % of the values; those of `mono8` and `mono16` are compared with the luminance.
TOLERANCE = {"jpeg": 5, "mono8": 1, "mono16": 1, "yuv422": 6, "yuv422_yuy2": 6, "nv12": 6}
_SETTINGS = ImageSettings("front", 1 << 20)


def smooth(height: int, width: int) -> np.ndarray:
    """An image without fine detail, which chroma subsampling and Bayer mosaics preserve."""
    small = np.random.default_rng(0).integers(30, 226, (2, 2, 3), dtype=np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)


def received(picture: np.ndarray, encoding: str) -> np.ndarray:
    message = image_message(picture, Header(frame_id="cam"), encoding)
    assert message.header.frame_id == "cam"
    return (decode_compressed if encoding in COMPRESSED else decode_image)(message, _SETTINGS)


def test_the_command_offers_every_encoding() -> None:
    assert list(ENCODINGS) == list(ENCODERS), "ENCODINGS of cli/camera.py and ENCODERS of camera/encodings.py differ"


@pytest.mark.parametrize("encoding", [*ENCODERS, *COMPRESSED])
def test_an_image_is_read_back(encoding: str) -> None:
    picture = smooth(96, 128).astype(float)
    if encoding.startswith("mono"):
        picture = np.repeat((picture @ [0.299, 0.587, 0.114])[..., None], 3, axis=2)
    inner = (slice(2, -2), slice(2, -2))
    error = np.abs(received(smooth(96, 128), encoding)[inner] - picture[inner])
    assert np.percentile(error, 99) <= TOLERANCE.get(encoding, 8 if "bayer" in encoding else 0)


@settings(max_examples=60)
@given(encoding=st.sampled_from(sorted(ENCODERS)), width=st.integers(3, 40), height=st.integers(3, 40))
def test_every_size_is_decoded_or_named_in_the_error(encoding: str, width: int, height: int) -> None:
    try:
        found = received(smooth(height, width), encoding)
    except ValueError as error:
        assert encoding in str(error)  # noqa: PT017
        assert f"{width}x{height}" in str(error)  # noqa: PT017
        assert width % 2 or height % 2
    else:
        assert found.shape == (height, width, 3)
