"""LSTR's curves against a direct evaluation of their formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.decoders.lane_curves import SPEC
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import OutputError

SIZE = (640, 360)


def decoder(threshold: float = 0.4, max_lines: int = 100):
    return SPEC.factory(Preprocess(*SIZE), ["lane"], keep=(), score_threshold=threshold, max_detections=max_lines)


def raw(rows: list[tuple[float, list[float]]]) -> list[torch.Tensor]:
    """(logit of lane, curve) of each line; the logit of none is 0."""
    logits = torch.tensor([[[0.0, logit] for logit, _ in rows]])
    return [logits, torch.tensor([[curve for _, curve in rows]], dtype=torch.float32)]


def test_points_lie_on_the_curve_from_the_bottom_up() -> None:
    curve = [0.9, 0.5, 0.002, 0.3, -0.05, 0.6, 0.2, 0.1]
    found = decoder()(raw([(3.0, curve), (-3.0, curve)]), (720, 1280))
    (lane,) = found.lanes
    assert lane.score == pytest.approx(1 / (1 + math.exp(-3.0)), abs=1e-6)
    assert lane.points[0, 1] == pytest.approx(0.9 * 720, abs=0.5)
    assert (np.diff(lane.points[:, 1]) < 0).all()
    _, _, k, f, m, n, b, c = curve
    for u, v in lane.points.tolist():
        y = v / 720
        assert u == pytest.approx((k / (y - f) ** 2 + m / (y - f) + n + b * y - c) * 1280, abs=0.05)


def test_ends_in_either_order_and_the_order_of_the_outputs_do_not_matter() -> None:
    down, up = [0.9, 0.5, 0.0, 0.3, 0.0, 0.6, 0.2, 0.1], [0.5, 0.9, 0.0, 0.3, 0.0, 0.6, 0.2, 0.1]
    first = decoder()(raw([(3.0, down)]), (360, 640))
    second = decoder()(list(reversed(raw([(3.0, up)]))), (360, 640))
    np.testing.assert_allclose(first.lanes[0].points, second.lanes[0].points)


def test_outputs_of_the_public_export_and_wrong_ones() -> None:
    further = [torch.zeros(1, 7, 2), torch.zeros(1, 7, 8), torch.zeros(1, 240, 240)]
    rows = [(3.0, [0.9, 0.5, 0.0, 0.3, 0.0, 0.6, 0.2, 0.1])] * 7
    one = decoder()
    one.check([*raw(rows), *further])
    assert len(one([*raw(rows), *further], (360, 640)).lanes) == 7
    with pytest.raises(OutputError, match="expected 8"):
        one.check([torch.zeros(1, 7, 2), torch.zeros(1, 7, 6)])
    with pytest.raises(OutputError, match="2 or 5 outputs expected, found 3"):
        one.check(raw(rows) + further[:1])


def test_the_network_gets_blue_first_as_in_training() -> None:
    image = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    image[..., 2] = 255
    values = Preprocess(*SIZE, **SPEC.preprocess)(image)
    assert values[0, 0].min() > 1.0
    assert values[0, 1:].max() < -1.0


numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
lines = st.tuples(st.floats(-8, 8, width=32), st.lists(numbers, min_size=8, max_size=8))


@settings(max_examples=60)
@given(rows=st.lists(lines, min_size=1, max_size=7), max_lines=st.integers(1, 8))
def test_any_numbers_give_lines_inside_the_image(rows: list, max_lines: int) -> None:
    found = decoder(0.3, max_lines)(raw(rows), (100, 200))
    assert len(found.lanes) <= max_lines
    for lane in found.lanes:
        assert np.isfinite(lane.points).all()
        assert ((lane.points >= 0) & (lane.points <= [199, 99])).all()
