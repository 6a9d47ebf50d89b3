"""The images for int8 calibration as inputs of a DNN that sees a part of the image."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.pipeline.calibration import MIN_IMAGES, CalibrationError, calibration_inputs
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.view import View

VIEW = View(crop=(480, 200, 320, 192), where="parameter dnn.far.crop")
SEEN = Dnn("far", "object", None, Preprocess(48, 32), {}, VIEW).array_inputs


def test_the_images_of_the_package_are_enlarged_to_the_crop() -> None:
    inputs = calibration_inputs("", SEEN, VIEW.enlarge_to_min)
    assert len(inputs) >= MIN_IMAGES
    assert {tuple(tensor.shape) for (tensor,) in inputs} == {(1, 3, 32, 48)}


def test_an_image_that_does_not_contain_the_crop_is_named(tmp_path: Path) -> None:
    for number in range(MIN_IMAGES):
        assert cv2.imwrite(str(tmp_path / f"{number}.png"), np.zeros((392, 800 if number else 799, 3), np.uint8))
    with pytest.raises(
        CalibrationError, match=r"0\.png: parameter dnn\.far\.crop .* ends at 800 x 392; the image has 799"
    ):
        calibration_inputs(str(tmp_path), SEEN, VIEW.enlarge_to_min)
