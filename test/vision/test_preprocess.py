"""Images become the input that a network was trained with: compared with PyTorch's resize in float32."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.preprocess_gpu import TensorPreprocess

#: Imports every module of both packages except the one for GPUs.
IMPORT_ALL = """
import importlib, pkgutil, sys
import multi_dnn_ros.decoders, multi_dnn_ros.vision
for package in (multi_dnn_ros.decoders, multi_dnn_ros.vision):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("preprocess_gpu"):
            importlib.import_module(module.name)
assert len([name for name in sys.modules if name.startswith(("multi_dnn_ros.decoders.", "multi_dnn_ros.vision."))]) > 20
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "torchvision", "rclpy"}))
"""


def test_vision_and_decoders_are_imported_without_pytorch_and_rclpy() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def reference(preprocess: Preprocess, image: np.ndarray) -> torch.Tensor:
    """As the class says, step by step in float32, without rounding."""
    place = preprocess.geometry(image.shape[:2])
    pixels = torch.from_numpy(image.transpose(2, 0, 1).copy())[None].float()
    size = (place.height, place.width)
    pixels = F.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=preprocess.antialias) / 255
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (preprocess.mean, preprocess.std))
    grey = mean.clone() if preprocess.pad is None else torch.full_like(mean, preprocess.pad)
    whole = grey.expand(1, 3, preprocess.height, preprocess.width).clone()
    pixels = pixels.flip(1) if preprocess.bgr else pixels
    whole[:, :, place.top : place.top + place.height, place.left : place.left + place.width] = pixels
    return (whole - mean) / std


sides = st.integers(2, 90)


def levels(preprocess: Preprocess, image: np.ndarray) -> np.ndarray:
    """Grey levels by which the input differs from the reference."""
    found = preprocess(image)
    assert (found.shape, found.dtype) == ((1, 3, preprocess.height, preprocess.width), np.float32)
    (tensor,) = TensorPreprocess(preprocess)(torch.from_numpy(image))
    np.testing.assert_array_equal(tensor.numpy(), found)
    std = torch.tensor(preprocess.std).view(3, 1, 1)
    return np.asarray(((torch.from_numpy(found) - reference(preprocess, image)) * std * 255).abs()[0])


@settings(max_examples=150, deadline=None)
@given(
    source=st.tuples(sides, sides),
    size=st.tuples(sides, sides),
    options=st.fixed_dictionaries(
        {
            "fit": st.sampled_from(["stretch", "letterbox"]),
            "bgr": st.booleans(),
            "centered": st.booleans(),
            "pad": st.sampled_from([None, 0.0, 114 / 255]),
        }
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_without_a_filter_the_input_is_that_of_the_reference_to_a_grey_level(
    source: Any, size: Any, options: Any, seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (*source, 3), np.uint8)
    preprocess = Preprocess(*size, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.5), antialias=False, **options)
    assume(preprocess.geometry(source).width > 1)  # PyTorch's own resize to one column repeats the first row
    assert levels(preprocess, image).max() <= 1.01


@settings(max_examples=60, deadline=None)
@given(st.tuples(st.integers(96, 320), st.integers(96, 320)), st.integers(0, 2**32 - 1))
def test_the_filter_is_close_to_that_of_the_reference_on_images(source: Any, seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (*source, 3), np.uint8)
    image = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 1.5), None, 0, 255, cv2.NORM_MINMAX)
    found = levels(Preprocess(96, 96), np.asarray(image, np.uint8))
    assert found.mean() < 2.0
    assert found[:, 1:-1, 1:-1].max() < 20.0


@pytest.mark.parametrize("image", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32),
                                   np.zeros((0, 4, 3), np.uint8)])  # fmt: skip
def test_another_array_is_an_error_that_names_shape_and_type(image: Any) -> None:
    with pytest.raises(ValueError, match=r"image of shape \(.*must be \(H, W, 3\) uint8"):
        Preprocess(8, 8)(image)


def test_an_image_may_be_a_thousand_times_as_large_as_the_input() -> None:
    image = np.full((2048, 2048, 3), 51, np.uint8)
    assert np.allclose(Preprocess(2, 2, fit="stretch")(image), 0.2, atol=1e-3)
