"""Runs, curve fits and lane lines of masks, some of them with noise.

The lines are compared with those of a plain program, which treats chains, pieces and lines one by one.
"""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from reference_lane_lines import lane_lines

from multi_dnn_ros.vision.decoders.curve_fits import Groups, fit_curve, fit_curves
from multi_dnn_ros.vision.decoders.lane_lines import find_runs, group_runs


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
    together = fit_curves(np.concatenate(v), np.concatenate(u), Groups(counts), bend).T
    for index in range(len(counts)):
        alone = fit_curve(v[index], u[index], (float(v[index][0]), float(v[index][-1])), bool(bend[index]))
        np.testing.assert_allclose(together[index], alone, rtol=1e-7, atol=1e-7)
        fitted = np.polynomial.polynomial.polyval(v[index], together[index])
        true = np.polynomial.polynomial.polyval(v[index], curves[index])
        assert np.abs(fitted - true).max() < 0.5
    assert together[1, 2] == pytest.approx(0.0, abs=1e-12)  # no curvature


@settings(max_examples=60)
@given(st.lists(st.lists(st.floats(0, 640), min_size=1, max_size=9), min_size=1, max_size=20))
def test_medians_of_groups(values: list[list[float]]) -> None:
    groups = Groups(np.array([len(group) for group in values]))
    medians = groups.medians(np.concatenate([np.array(group) for group in values]))
    np.testing.assert_allclose(medians, [sorted(group)[len(group) // 2] for group in values], atol=1e-9)


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
    lengths = np.bincount(lines.of_run + 1, minlength=len(lines.curves) + 1)[1:]
    assert any(length >= 200 and abs(curve[0] - 319) < 3 for length, curve in zip(lengths, lines.curves, strict=True))
    assert lines.of_run.shape == runs.row.shape
    assert lines.of_run.max() < len(lines.curves)


def _assert_as_reference(mask: np.ndarray) -> int:
    """Compare the lines of a mask with those of the plain program. Returns their number."""
    runs = find_runs(mask)
    lines = group_runs(runs, mask.shape[1])
    expected = lane_lines(mask)
    assert len(lines.curves) == len(expected)
    for number, (pixels, curve) in enumerate(expected):
        found = np.zeros_like(mask)
        for index in np.flatnonzero(lines.of_run == number):
            found[runs.row[index], runs.begin[index] : runs.end[index]] = 1
        assert {(int(v), int(u)) for v, u in np.argwhere(found)} == pixels
        v = np.arange(lines.first_row[number], lines.last_row[number] + 1)
        assert (v[0], v[-1]) == (min(row for row, _ in pixels), max(row for row, _ in pixels))
        fitted = np.polynomial.polynomial.polyval(v, lines.curves[number])
        np.testing.assert_allclose(fitted, np.polynomial.polynomial.polyval(v, curve), atol=0.01)
    return len(expected)


def _road(random: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Up to five solid and dashed lines that meet at a vanishing point, with ragged edges and some blobs."""
    mask = np.zeros((height, width), np.uint8)
    vanishing_u, vanishing_v = random.uniform(0.3, 0.7) * width, random.uniform(0.2, 0.45) * height
    for _ in range(random.integers(1, 6)):
        bottom, bend = random.uniform(-0.2, 1.2) * width, random.uniform(-0.1, 0.1) * width
        dashed, period, phase = random.random() < 0.5, random.uniform(15, 60), random.uniform(0, 60)
        for v in range(int(vanishing_v) + 3, height):
            share = (v - vanishing_v) / (height - vanishing_v)
            if dashed and (v + phase) % period > 0.5 * period:
                continue
            u = vanishing_u + (bottom - vanishing_u) * share + bend * share * (1 - share)
            half = 0.5 + 2.5 * share
            begin, end = (round(u + side * half + random.normal(0, 0.3)) for side in (-1, 1))
            mask[v, max(begin, 0) : max(end + 1, 0)] = 1
    for v, u in random.permutation(np.argwhere(mask))[: random.integers(0, 20)]:
        cv2.circle(mask, (int(u), int(v)), int(random.integers(1, 5)), 1, -1)
    return mask


def test_lines_of_roads_are_those_of_the_plain_program() -> None:
    random = np.random.default_rng(2)
    found = [_assert_as_reference(_road(random, width, 192)) for width in (320, 256) for _ in range(30)]
    assert sum(found) > 60


@pytest.mark.parametrize("scale", [2.0, 4.0, 8.0])
def test_lines_in_noise_are_those_of_the_plain_program(scale: float) -> None:
    """Smooth noise, as the logits of a network with random weights are: hundreds of blobs, bars and curved lines."""
    random = np.random.default_rng(3)
    found = 0
    for threshold in (0.0, 0.5, 1.0, 1.5):
        noise = cv2.GaussianBlur(random.standard_normal((240, 320)), (0, 0), scale)
        found += _assert_as_reference((noise > threshold * noise.std()).astype(np.uint8))
    assert found > 3


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (30, 50)])
@pytest.mark.parametrize("value", [0, 1])
def test_masks_without_lines(shape: tuple[int, int], value: int) -> None:
    assert _assert_as_reference(np.full(shape, value, np.uint8)) == 0
