"""A DNN that sees a part of the image: its results are in pixels of the whole image."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.decoders.lane_map import LaneDecoder
from multi_dnn_ros.decoders.yolo import YoloDecoder
from multi_dnn_ros.models.dnn import Dnn, Output
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.view import View, Window

LABELS = ("car", "truck")


def detector(view: View, preprocess: Preprocess) -> Dnn:
    output = Output(YoloDecoder(preprocess, LABELS), LABELS, "detections")
    return Dnn("far", "object", torch.nn.Identity(), preprocess, {"": output}, view)


def outputs_for(boxes: npt.NDArray[np.floating[Any]]) -> torch.Tensor:
    """(1, 4 + classes, N): what a YOLO returns for boxes x1, y1, x2, y2 in input pixels."""
    raw = torch.zeros(1, 4 + len(LABELS), len(boxes))
    corners = torch.from_numpy(np.asarray(boxes, np.float32))
    raw[0, :2] = ((corners[:, :2] + corners[:, 2:]) / 2).T
    raw[0, 2:4] = (corners[:, 2:] - corners[:, :2]).T
    raw[0, 4] = 0.9
    return raw


@st.composite
def views(draw: st.DrawFn) -> tuple[View, tuple[int, int]]:
    """A view, and (H, W) of an image that contains it."""
    width, height = draw(st.integers(2, 2000)), draw(st.integers(2, 2000))
    if draw(st.booleans()):
        x, y = (draw(st.floats(0.0, 0.9)) for _ in range(2))
        crop = (x, y, draw(st.floats(0.01, 1.0)) * (1 - x), draw(st.floats(0.01, 1.0)) * (1 - y))
    else:
        x, y = draw(st.integers(0, width - 2)), draw(st.integers(0, height - 2))
        crop = (x, y, draw(st.integers(2, width - x)), draw(st.integers(2, height - y)))
    return View(crop), (height, width)


@given(case=views(), fit=st.sampled_from(["stretch", "letterbox"]), data=st.data())
@settings(deadline=None)
def test_a_box_returns_to_its_position_in_the_whole_image(case: Any, fit: Any, data: Any) -> None:
    view, size = case
    window = view.window(size)
    assert 0 <= window.left < window.right <= size[1]
    assert 0 <= window.top < window.bottom <= size[0]
    dnn = detector(view, Preprocess(*data.draw(st.tuples(st.integers(8, 700), st.integers(8, 700))), fit=fit))
    u = sorted(data.draw(st.lists(st.floats(0, 1), min_size=2, max_size=2, unique=True)))
    v = sorted(data.draw(st.lists(st.floats(0, 1), min_size=2, max_size=2, unique=True)))
    box = np.array([window.left + u[0] * window.width, window.top + v[0] * window.height,
                    window.left + u[1] * window.width, window.top + v[1] * window.height])  # fmt: skip
    geometry = dnn.preprocess.geometry(window.size)
    x = (box[[0, 2]] - window.left) * geometry.scale_x + geometry.left
    y = (box[[1, 3]] - window.top) * geometry.scale_y + geometry.top
    found = dnn.results((outputs_for(np.array([[x[0], y[0], x[1], y[1]]])),), size)
    for got in found.boxes:  # none: a box without a height or width in float32
        np.testing.assert_allclose(got, box, atol=0.5)
    assert len(found) == 1 or min(box[2:] - box[:2]) < 0.01


def test_lane_lines_of_a_crop_are_in_pixels_of_the_image() -> None:
    view, size = View((0.0, 0.4, 1.0, 0.6)), (100, 120)
    preprocess = Preprocess(120, 60)
    output = Output(LaneDecoder(preprocess, ["lane"]), ("lane",), "lanes")
    dnn = Dnn("lane", "lane", torch.nn.Identity(), preprocess, {"": output}, view)
    logits = torch.full((1, 1, 60, 120), -9.0)
    logits[..., 10:50, 30:34] = 9.0
    found = dnn.results((logits,), size)
    (lane,) = found.lanes
    assert found.mask.shape == size
    expected = np.zeros(size, np.uint8)
    expected[50:90, 30:34] = 1
    np.testing.assert_array_equal(found.mask, expected)
    np.testing.assert_allclose(lane.points[[0, -1]], [[31.5, 89], [31.5, 50]], atol=0.5)
    u = np.polyval(lane.curve[::-1], lane.points[:, 1])
    np.testing.assert_allclose(u, lane.points[:, 0], atol=0.1)


def test_a_window_beyond_the_image_names_the_parameter_and_both_sizes() -> None:
    view = View((0, 288, 1280, 432), where="parameter dnn.far.crop")
    assert view.min_size == (720, 1280)
    assert view.window((720, 1280)) == Window(0, 288, 1280, 432)
    with pytest.raises(
        ValueError, match=r"dnn.far.crop is \[0, 288, 1280, 432\], which ends at 1280 x 720; .* 640 x 480"
    ):
        view.window((480, 640))
