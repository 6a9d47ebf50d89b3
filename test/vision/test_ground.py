"""Projection of pixels onto the ground plane and back, and calibrations that cannot be used."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.vision.ground import CameraPose, GroundView, ImageArea
from multi_dnn_ros.vision.lens import CalibrationError, checked_lens

K = (500.0, 0.0, 319.5, 0.0, 505.0, 239.5, 0.0, 0.0, 1.0)
#: Distortions of ordinary lenses: model, and D at full strength.
LENSES = {
    "pinhole": ("", ()),
    "plumb_bob": ("plumb_bob", (-0.25, 0.08, 0.001, -0.001, -0.01)),
    "rational_polynomial": ("rational_polynomial", (0.5, -0.1, 0.0005, 0.0003, 0.01, 0.8, -0.05, 0.02)),
    "equidistant": ("equidistant", (-0.03, 0.01, -0.005, 0.001)),
}


def small(limit: float) -> st.SearchStrategy[float]:
    return st.floats(-limit, limit)


@st.composite
def views(draw: Any, lens: str) -> GroundView:
    model, full = LENSES[lens]
    share = draw(st.floats(0.1, 1.0))
    focal = draw(st.floats(300.0, 1500.0))
    matrix = (focal, 0.0, 319.5 + draw(small(30.0)), 0.0, focal * draw(st.floats(0.95, 1.05)), 239.5, 0.0, 0.0, 1.0)
    return GroundView(
        checked_lens(matrix, [share * value for value in full], model),
        ImageArea((draw(small(50.0)), draw(small(50.0))), (draw(st.floats(0.5, 4.0)), draw(st.floats(0.5, 4.0)))),
        CameraPose.mounted(
            (draw(small(3.0)), draw(small(2.0)), draw(st.floats(0.3, 5.0))),
            draw(small(0.3)), draw(small(0.4)), draw(small(3.0)),
        ),
    )  # fmt: skip


def pixels_of(view: GroundView, points: np.ndarray) -> np.ndarray:
    """(N, 3) points of the vehicle frame -> (N, 2) u, v of the image."""
    optical = (points - view.pose.position) @ view.pose.rotation
    calibrated = view.lens.pixels(optical[:, :2] / optical[:, 2:])
    return (calibrated - view.area.offset + 0.5) / view.area.scale - 0.5


#: Directions inside the field of view of an ordinary lens, below the horizon of a level camera.
DIRECTIONS = st.lists(st.tuples(small(0.7), st.floats(0.02, 0.6)), min_size=1, max_size=20)


@pytest.mark.parametrize("lens", LENSES)
@given(data=st.data())
def test_a_point_of_the_ground_is_found_again(lens: str, data: Any) -> None:
    view = data.draw(views(lens))
    optical = np.array([(x, y, 1.0) for x, y in data.draw(DIRECTIONS)])
    rays = optical @ view.pose.rotation.T
    rays = rays[rays[:, 2] < -0.01]
    truth = view.pose.position - rays * (view.pose.position[2] / rays[:, 2:])
    found = view.project(pixels_of(view, truth))
    assert found.kept.all()
    distance = np.hypot(*(truth - view.pose.position)[:, :2].T)
    assert (np.abs(found.points - truth).max(axis=1, initial=0.0) <= 1e-6 * np.maximum(distance, 1.0)).all()


def view_of(*, pitch: float = 0.0, roll: float = 0.0, yaw: float = 0.0, **others: Any) -> GroundView:
    pose = CameraPose.mounted((0.0, 0.0, 1.4), roll, pitch, yaw)
    return GroundView(checked_lens(K, (), ""), ImageArea(), pose, **others)


def test_the_axes_are_those_of_rep_103() -> None:
    centre = np.array([[319.5, 239.5]])
    (point,) = view_of(pitch=0.1).project(centre).points  # looks down
    assert point == pytest.approx([1.4 / math.tan(0.1), 0.0, 0.0])
    (left,) = view_of(pitch=0.1, yaw=0.2).project(centre).points
    assert math.atan2(left[1], left[0]) == pytest.approx(0.2)
    right = view_of().project(np.array([[419.5, 289.5]])).points[0]
    assert right[0] == pytest.approx(1.4 * 505 / 50)
    assert right[1] == pytest.approx(-right[0] * 100 / 500)  # y is to the left
    # Rolled clockwise, the right side of the image sees the ground nearer.
    rolled = view_of(roll=0.1).project(np.array([[419.5, 260.0]])).points[0]
    assert rolled[0] < view_of().project(np.array([[419.5, 260.0]])).points[0][0]


def test_points_that_are_left_out() -> None:
    rows = np.array([[319.5, 100.0], [319.5, 239.5], [319.5, 241.0], [319.5, 300.0], [math.nan, 300.0]])
    assert view_of(range_m=60.0).project(rows).kept.tolist() == [False, False, False, True, False]
    assert view_of().project(rows).kept.tolist() == [False, False, True, True, False]
    assert view_of().project(np.empty((0, 2))).points.shape == (0, 3)
    # This polynomial has a maximum: no direction projects beyond it.
    barrel = GroundView(checked_lens(K, (-0.4, 0.0, 0.0, 0.0), "plumb_bob"), ImageArea(), view_of().pose)
    assert barrel.project(np.array([[2000.0, 2000.0], [319.5, 300.0]])).kept.tolist() == [False, True]


@pytest.mark.parametrize(
    ("matrix", "coefficients", "model", "text"),
    [
        ((0.0,) * 9, (), "plumb_bob", "the focal length is 0 x 0 pixels: the camera is not calibrated"),
        ((*K[:4], math.nan, *K[5:]), (), "", "NaN or infinity"),
        (K, (math.inf, 0.0, 0.0, 0.0), "plumb_bob", "NaN or infinity"),
        (K, (0.1,) * 5, "fov", "'fov' is not known; allowed: plumb_bob, rational_polynomial, equidistant"),
        (K, (0.1,) * 3, "plumb_bob", "plumb_bob has 3 coefficients; allowed: 4, 5"),
        (K, (0.1,) * 5, "equidistant", "equidistant has 5 coefficients; allowed: 4"),
    ],
)
def test_a_calibration_that_cannot_be_used(
    matrix: tuple[float, ...], coefficients: tuple[float, ...], model: str, text: str
) -> None:
    with pytest.raises(CalibrationError, match=text.replace("(", r"\(")):
        checked_lens(matrix, coefficients, model)
