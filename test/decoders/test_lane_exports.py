"""UFLD and TwinLiteNet: lines that were put into raw outputs come back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.decoders.lane_map import LaneDecoder, TwinLiteNetDecoder
from multi_dnn_ros.decoders.layout import Layout
from multi_dnn_ros.decoders.recognition import recognize
from multi_dnn_ros.decoders.ufld import UfldDecoder
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import OutputError

CULANE = [121, 131, 141, 150, 160, 170, 180, 189, 199, 209, 219, 228, 238, 248, 258, 267, 277, 287]
TUSIMPLE = [64 + 4 * number for number in range(56)]


def points_by_definition(logits: np.ndarray, rows: list[int], size: tuple[int, int]) -> list[list[tuple]]:
    """The points u, v of each of four lanes from the bottom up, row by row; size: (H, W) of the image."""
    height, width = size
    cells = logits.shape[0] - 1
    found = []
    for lane in range(4):
        points = []
        for row in reversed(range(len(rows))):
            values = [float(value) for value in logits[:, row, lane]]
            if max(range(cells + 1), key=lambda cell: (values[cell], -cell)) == cells:
                continue
            top = max(values[:-1])
            shares = [math.exp(value - top) for value in values[:-1]]
            position = sum((cell + 1) * share for cell, share in enumerate(shares)) / sum(shares)
            x, y = position * 799 / (cells - 1) - 1, rows[row] - 1
            u, v = x * width / 800, y * height / 288
            if 0 <= u <= width - 1 and 0 <= v <= height - 1:
                points.append((u, v))
        found.append(points if len(points) >= 3 else [])
    return found


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([CULANE, TUSIMPLE]),
    cells=st.sampled_from([10, 100, 200]),
    absent=st.floats(0, 8),
    size=st.tuples(st.integers(20, 1200), st.integers(20, 1920)),
)
def test_ufld_points_are_those_of_the_definition(seed: int, rows: list, cells: int, absent: float, size: tuple) -> None:
    logits = np.random.default_rng(seed).normal(0, 2, (cells + 1, len(rows), 4)).astype(np.float32)
    logits[-1] += np.float32(absent)
    decoder = UfldDecoder(Preprocess(800, 288), ["lane"], score_threshold=1e-9)
    raw = [torch.from_numpy(logits)[None]]
    decoder.check(raw)
    result = decoder(raw, size)
    expected = sorted(map(np.array, filter(len, points_by_definition(logits, rows, size))), key=lambda p: tuple(p[0]))
    got = sorted((lane.points for lane in result.lanes), key=lambda p: tuple(p[0]))
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=0.01)
    assert [lane.number for lane in result.lanes] == list(range(1, len(got) + 1))
    assert set(np.unique(result.numbers)) <= set(range(len(got) + 1))
    for lane in result.lanes:
        assert 0.0 <= lane.score <= 1.0
        assert np.isfinite(lane.curve).all()


def test_ufld_lines_are_numbered_from_the_left_and_have_their_curve() -> None:
    logits = np.full((101, 56, 4), -9.0, np.float32)
    logits[-1] = 0.0
    for lane, (bottom, slope) in enumerate([(60, -0.4), (20, 0.5)]):  # in cells, and cells per row
        for row in range(10, 56):
            logits[round(bottom + slope * (row - 55)), row, lane] = 9.0
    result = UfldDecoder(Preprocess(800, 288), ["lane"])([torch.from_numpy(logits)[None]], (720, 1280))
    assert [lane.number for lane in result.lanes] == [1, 2]
    for lane, bottom in zip(result.lanes, (20, 60), strict=True):
        u, v = lane.points[0]
        assert u == pytest.approx(((bottom + 1) * 799 / 99 - 1) * 1.6, abs=0.5)
        assert v == pytest.approx(283 * 2.5)
        c0, c1, c2 = lane.curve
        assert c0 + c1 * v + c2 * v**2 == pytest.approx(u, abs=10)
        assert lane.score > 0.99
    assert set(np.unique(result.mask)) == {0, 1, 2}
    empty = UfldDecoder(Preprocess(800, 288), ["lane"])([torch.from_numpy(logits[:, :, 2:])[None].repeat(1, 1, 1, 2)],
                                                        (720, 1280))  # fmt: skip
    assert empty.lanes == ()


def test_twinlitenet_gives_the_lines_of_its_second_map() -> None:
    generator = torch.Generator().manual_seed(0)
    area, lines = torch.randn(1, 2, 90, 160, generator=generator), torch.zeros(1, 2, 90, 160)
    lines[0, 0] = 8.0
    lines[0, :, 30:, 40:44] = torch.tensor([-4.0, 4.0])[:, None, None]
    lines[0, :, 30:, 110:114] = torch.tensor([-4.0, 4.0])[:, None, None]
    decoder = TwinLiteNetDecoder(Preprocess(160, 90), ("none", "lane"))
    decoder.check([area, lines])
    result = decoder([area, lines], (720, 1280))
    assert len(result.lanes) == 2
    single = LaneDecoder(Preprocess(160, 90), ("none", "lane"))([lines], (720, 1280))
    np.testing.assert_array_equal(result.numbers, single.numbers)
    parts = decoder.in_two_parts()
    assert parts is not None
    np.testing.assert_array_equal(parts.decode(parts.condense([area, lines]), (720, 1280)).numbers, single.numbers)
    with pytest.raises(OutputError, match=r"decoder twinlitenet with .* reads .* expected, found 1"):
        decoder([lines], (720, 1280))
    with pytest.raises(OutputError, match="output 0 holds NaN"):
        decoder([torch.full_like(area, float("nan")), lines], (720, 1280))


@pytest.mark.parametrize(
    ("shapes", "size", "name"),
    [
        (((1, 2, 360, 640), (1, 2, 360, 640)), (640, 360), "twinlitenet"),
        (((1, 101, 56, 4),), (800, 288), "ufld"),
        (((1, 201, 18, 4),), (800, 288), "ufld"),
    ],
)
def test_lane_exports_are_recognized(shapes: tuple, size: tuple[int, int], name: str) -> None:
    assert recognize(Layout(shapes, size)).chosen == name
    assert recognize(Layout(shapes, size), "lanes").chosen == name


def test_ufld_with_other_rows_is_refused() -> None:
    with pytest.raises(OutputError, match=r"72 rows; allowed: 56 \(TuSimple\), 18 \(CULane\)"):
        UfldDecoder(Preprocess(800, 288), ["lane"])([torch.zeros(1, 101, 72, 4)], (20, 20))
