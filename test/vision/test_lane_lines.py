"""Runs, curve fits and lane lines of masks, some of them with noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from multi_dnn_ros.vision.decoders.lane_lines import find_runs, fit_curves, group_runs


@settings(max_examples=60)
@given(arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 1)))
def test_runs_cover_exactly_the_set_pixels(mask: np.ndarray) -> None:
    runs = find_runs(mask)
    again = np.zeros_like(mask)
    for row, begin, end in zip(runs.row, runs.begin, runs.end, strict=True):
        assert begin < end
        assert not again[row, max(begin - 1, 0) : end + 1].any()  # neither overlapping nor touching
        again[row, begin:end] = 1
    np.testing.assert_array_equal(again, mask)
    assert (np.diff(runs.row * 10 + runs.begin) > 0).all()  # row by row, left to right


def test_curves_fitted_at_once_are_those_fitted_one_by_one() -> None:
    random = np.random.default_rng(3)
    curves = np.array([[100.0, 0.5, 0.002], [300.0, -1.0, 0.0], [40.0, 2.0, -0.001], [7.0, 0.0, 0.0]])
    counts, bend = np.array([60, 30, 200, 1]), np.array([True, False, True, False])
    v = [np.arange(count) + 10.0 * index for index, count in enumerate(counts)]
    u = [c0 + c1 * y + c2 * y * y for (c0, c1, c2), y in zip(curves, v, strict=True)]
    for values in u[:3]:
        values[5::10] += random.uniform(5, 20)  # a tenth are outliers, which must not affect the curve
    together = fit_curves(np.concatenate(v), np.concatenate(u), counts, bend)
    for index in range(len(counts)):
        only = slice(index, index + 1)
        alone = fit_curves(v[index], u[index], counts[only], bend[only])
        np.testing.assert_allclose(together[only], alone, rtol=1e-7, atol=1e-7)
        fitted = np.polynomial.polynomial.polyval(v[index], together[index])
        true = np.polynomial.polynomial.polyval(v[index], curves[index])
        assert np.abs(fitted - true).max() < 0.5
    assert together[1, 2] == pytest.approx(0.0, abs=1e-12)  # no curvature


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_lines_in_noise_are_disjoint_and_a_true_line_is_found(share: float) -> None:
    """The noise yields thousands of chains of runs."""
    random = np.random.default_rng(1)
    mask = (random.random((360, 640)) < share).astype(np.uint8)
    for v in range(120, 360):
        mask[v, 300:340] = 0
        mask[v, 318 : 322 + v // 90] = 1
    runs = find_runs(mask)
    lines = group_runs(runs, 640)
    assert any(len(line.members) >= 200 and abs(line.curve[0] - 319) < 3 for line in lines)
    used = np.concatenate([line.members for line in lines])
    assert len(np.unique(used)) == len(used)
    assert used.max() < len(runs.row)
