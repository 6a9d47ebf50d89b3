"""Lane lines in masks, some of them full of noise."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from multi_dnn_ros.decoders.lane_lines import Lines, Runs, find_runs, group_runs, max_runs

MASKS = arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 1))


def closed(mask: np.ndarray) -> np.ndarray:
    return np.asarray(cv2.morphologyEx(mask, cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8)))


def painted(runs: Runs) -> np.ndarray:
    mask = np.zeros((runs.height, runs.width), np.uint8)
    for begin, end, row in zip(runs.begin, runs.end, runs.row, strict=True):
        mask[row, begin - row * (runs.width + 1) : end - row * (runs.width + 1)] += 1
    return mask


@settings(max_examples=80)
@given(MASKS)
def test_runs_cover_exactly_the_set_pixels(mask: np.ndarray) -> None:
    runs = find_runs(mask)
    np.testing.assert_array_equal(painted(runs), closed(mask))
    assert (runs.begin[1:] > runs.end[:-1]).all()  # row by row, left to right, not touching


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1])
def test_lines_in_noise_are_disjoint_and_a_true_line_is_found(share: float) -> None:
    """The noise yields tens of thousands of runs, of which a bounded number is considered."""
    random = np.random.default_rng(1)
    mask = (random.random((360, 640)) < share).astype(np.uint8)
    for v in range(120, 360):
        mask[v, 290:350] = 0
        mask[v, 317 : 323 + v // 60] = 1
    runs = find_runs(mask)
    assert len(runs.begin) <= max_runs(360)
    lines = group_runs(runs)
    lengths = np.bincount(lines.of_run + 1, minlength=len(lines.curves) + 1)[1:]
    assert any(length >= 200 and abs(curve[0] - 319) < 3 for length, curve in zip(lengths, lines.curves, strict=True))
    assert lines.of_run.shape == runs.begin.shape
    assert lines.of_run.max() < len(lines.curves)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([(192, 320), (144, 256)]))
def test_lines_of_roads_are_found(seed: int, size: tuple[int, int]) -> None:
    """Solid and dashed lines that meet at a vanishing point, in lanes as wide as real ones, with ragged edges."""
    height, width = size
    random = np.random.default_rng(seed)
    mask = np.zeros(size, np.uint8)
    vanishing_u, vanishing_v = random.uniform(0.4, 0.6) * width, random.uniform(0.2, 0.4) * height
    bottoms = np.arange(random.integers(2, 5)) * 0.4 * width + random.uniform(-0.3, 0.1) * width
    for bottom in bottoms:
        dashed, phase = random.random() < 0.5, random.uniform(0, 30)
        for v in range(int(vanishing_v) + 12, height):
            share = (v - vanishing_v) / (height - vanishing_v)
            if not (dashed and (v + phase) % 30 > 18):
                u, half = vanishing_u + (bottom - vanishing_u) * share, 1.0 + 2.0 * share
                begin, end = (round(u + side * half + random.normal(0, 0.2)) for side in (-1, 1))
                mask[v, max(begin, 0) : max(end + 1, 0)] = 1
    lines = group_runs(find_runs(mask))
    v = height * 0.8
    share = (v - vanishing_v) / (height - vanishing_v)
    expected = vanishing_u + (bottoms - vanishing_u) * share
    found = np.polynomial.polynomial.polyval(v, lines.curves.T)
    for u in expected[(expected > 5) & (expected < width - 5)]:
        assert np.abs(found - u).min() < 3.0
    assert len(lines.curves) <= len(bottoms) + 2


def found_in(mask: np.ndarray) -> Lines:
    return group_runs(find_runs(mask))


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (30, 50)])
@pytest.mark.parametrize("value", [0, 1])
def test_masks_without_lines(shape: tuple[int, int], value: int) -> None:
    assert not len(found_in(np.full(shape, value, np.uint8)).curves)


def test_blobs_and_bars_are_no_lines() -> None:
    mask = np.zeros((192, 320), np.uint8)
    cv2.circle(mask, (80, 100), 20, 1, -1)
    cv2.rectangle(mask, (150, 150), (300, 154), 1, -1)
    assert not len(found_in(mask).curves)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 2.0, 4.0, 8.0]), st.floats(0.0, 1.5))
def test_each_run_of_noise_belongs_to_at_most_one_line_within_its_rows(seed: int, blur: float, level: float) -> None:
    noise = np.random.default_rng(seed).standard_normal((240, 320))
    smooth = cv2.GaussianBlur(noise, (0, 0), blur) if blur else noise
    runs = find_runs((smooth > level * smooth.std()).astype(np.uint8))
    lines = group_runs(runs)
    assert np.isfinite(lines.curves).all()
    for number, (first, last) in enumerate(zip(lines.first_row, lines.last_row, strict=True)):
        rows = runs.row[lines.of_run == number]
        assert len(rows)
        assert (rows.min(), rows.max()) == (first, last)
