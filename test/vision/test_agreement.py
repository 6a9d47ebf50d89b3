"""The agreement of two results is 1 if they are equal, and lower for each box or line that only one of them has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.vision.agreement import Agreement, compare_detections, compare_lanes
from multi_dnn_ros.vision.results import Detections, Lane, Lanes

LABELS = ("car", "person")
boxes = st.tuples(st.integers(0, 80), st.integers(0, 80), st.integers(1, 60), st.integers(1, 60), st.integers(0, 1))


def found(rows: list[tuple], labels: tuple[str, ...] = LABELS) -> Detections:
    array = np.array([(x, y, x + w, y + h) for x, y, w, h, _ in rows], np.float32).reshape(-1, 4)
    ids = np.array([row[4] for row in rows], np.int64)
    return Detections(array, np.linspace(0.9, 0.5, len(rows), dtype=np.float32), ids, labels)


def lines(columns: list[float], top: float = 20.0) -> Lanes:
    v = np.linspace(99, top, 10)
    lanes = tuple(
        Lane(number, np.stack([np.full(10, u), v], 1).astype(np.float32), np.array([u, 0.0, 0.0]), 0.9)
        for number, u in enumerate(columns, start=1)
    )
    return Lanes(np.zeros((100, 320), np.uint8), lanes, (100, 320))


@given(st.lists(boxes, max_size=12), st.lists(boxes, max_size=12))
def test_boxes(one: list[tuple], other: list[tuple]) -> None:
    first, second = found(one), found(other)
    assert compare_detections(first, first) == (len(one), len(one), len(one))
    agreement = compare_detections(first, second)
    assert agreement.both <= min(len(one), len(other))
    assert 0.0 <= agreement.share <= 1.0
    assert compare_detections(second, first).share == agreement.share
    assert agreement.plus(agreement).share == pytest.approx(agreement.share)


def test_a_box_agrees_with_one_of_its_class_that_overlaps_by_half() -> None:
    one = [(0, 0, 40, 40, 0), (50, 50, 40, 40, 1)]
    assert compare_detections(found(one), found([(4, 0, 40, 40, 0)])).share == pytest.approx(2 / 3)
    assert compare_detections(found(one), found([(30, 0, 40, 40, 0)])).share == 0.0
    assert compare_detections(found(one[:1]), found([(0, 0, 40, 40, 1)])).share == 0.0
    assert compare_detections(found(one[:1]), found([(0, 0, 40, 40, 1)], ("person", "car"))).share == 1.0  # by name
    assert compare_detections(found([(0, 0, 40, 40, 0)] * 2), found(one[:1])) == (1, 2, 1)  # a box counts once
    assert Agreement().share == 1.0


@given(st.lists(st.integers(0, 319), max_size=6, unique=True), st.lists(st.integers(0, 319), max_size=6, unique=True))
def test_lines(one: list[int], other: list[int]) -> None:
    first, second = lines(one), lines(other)
    assert compare_lanes(first, first).share == 1.0
    agreement = compare_lanes(first, second)
    assert agreement.both <= min(len(one), len(other))
    assert compare_lanes(second, first).share == agreement.share


def test_a_line_agrees_with_one_at_most_a_hundredth_of_the_width_away() -> None:
    assert compare_lanes(lines([100, 200]), lines([102, 204])) == (1, 2, 2)
    assert compare_lanes(lines([100], top=20), lines([100], top=90)) == (1, 1, 1)
    assert compare_lanes(lines([100], top=20), lines([])) == (0, 1, 0)
