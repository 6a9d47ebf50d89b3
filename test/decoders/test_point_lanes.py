"""UFLDv2, CLRNet, LSTR: the lines are those of the networks' original code (reference_lanes.py) or formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference_lanes
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from multi_dnn_ros.decoders.base import Decoder
from multi_dnn_ros.decoders.lane_curves import SPEC, ClrNetDecoder
from multi_dnn_ros.decoders.ufld import UfldV2Decoder
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Lanes, OutputError

#: Rows, columns, the rows' positions in the whole image, the part that the network sees, its input.
CULANE = (72, 81, list(np.linspace(0.42, 1, 72)), 0.6, (1600, 320))
TUSIMPLE = (56, 41, list(np.linspace(160, 710, 56) / 720), 0.8, (800, 320))
SIZES = st.tuples(st.integers(20, 1200), st.integers(20, 1920))


def same_lines(found: Lanes, expected: list[reference_lanes.Line]) -> None:
    got = sorted(((lane.score, lane.points) for lane in found.lanes), key=lambda line: (line[0], *line[1][0]))
    wanted = sorted(((score, points) for points, score in expected), key=lambda line: (line[0], *line[1][0]))
    assert len(got) == len(wanted)
    for (score, points), (right_score, right) in zip(got, wanted, strict=True):
        assert score == pytest.approx(right_score, abs=1e-6)
        np.testing.assert_allclose(points, np.array(right), rtol=1e-4, atol=0.01)
    assert [lane.number for lane in found.lanes] == list(range(1, len(got) + 1))
    assert set(np.unique(found.numbers)) <= set(range(len(got) + 1))
    for lane in found.lanes:
        assert np.isfinite(lane.curve).all()


def ufldv2_outputs(seed: int, trained_for: tuple, cells: int, present: float) -> list[np.ndarray]:
    rows, columns, *_ = trained_for
    random = np.random.default_rng(seed)
    shapes = [(1, cells, rows, 4), (1, cells // 2 + 1, columns, 4), (1, 2, rows, 4), (1, 2, columns, 4)]
    outputs = [random.normal(0, 3, shape).astype(np.float32) for shape in shapes]
    for exists in outputs[2:]:
        exists[:, 1] += np.float32(present)
    return outputs


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    trained_for=st.sampled_from([CULANE, TUSIMPLE]),
    cells=st.sampled_from([8, 100, 200]),
    present=st.floats(-3, 6),
    size=SIZES,
    order=st.permutations(range(4)),
)
def test_ufldv2(seed: int, trained_for: tuple, cells: int, present: float, size: tuple, order: list[int]) -> None:
    outputs = ufldv2_outputs(seed, trained_for, cells, present)
    decoder = UfldV2Decoder(Preprocess(*trained_for[4]), ["lane"], score_threshold=0.3)
    raw = [torch.from_numpy(outputs[index]) for index in order]
    decoder.check(raw)
    expected = reference_lanes.ufldv2(outputs, size, 0.3, row_anchors=trained_for[2], seen=trained_for[3])
    same_lines(decoder(raw, size), expected)


def clrnet_outputs(seed: int, count: int, spread: float) -> np.ndarray:
    """Candidates near straight lines; some close to each other, some short, some outside the image."""
    random = np.random.default_rng(seed)
    rows = np.zeros((1, count, 78), np.float32)
    rows[..., :2] = random.normal(0, 2, (1, count, 2))
    rows[..., 2] = random.choice([0.0, 0.1, random.uniform(-0.1, 1.1)], (1, count))
    rows[..., 3] = random.uniform(0, 1, (1, count))
    rows[..., 5] = random.uniform(0, 1.2, (1, count))
    position = np.linspace(0, 1, 72)
    slope = random.uniform(-0.8, 0.8, (count, 1))
    rows[0, :, 6:] = rows[0, :, 3:4] + slope * position * spread + random.normal(0, 0.003, (count, 72))
    return rows


@settings(max_examples=60, deadline=None)
@example(seed=462783, count=52, spread=0.0, max_lines=3, size=(20, 20))  # candidates that start below the image
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 60),
    spread=st.floats(0, 2),
    max_lines=st.integers(1, 6),
    size=SIZES,
)
def test_clrnet(seed: int, count: int, spread: float, max_lines: int, size: tuple) -> None:
    rows = clrnet_outputs(seed, count, spread)
    decoder = ClrNetDecoder(Preprocess(800, 320), ["lane"], score_threshold=0.4, max_detections=max_lines)
    raw = [torch.from_numpy(rows)]
    decoder.check(raw)
    same_lines(decoder(raw, size), reference_lanes.clrnet([rows], size, 0.4, max_lines))


def lstr(threshold: float = 0.4, max_lines: int = 100) -> Decoder:
    return SPEC.factory(Preprocess(640, 360), ["lane"], keep=(), score_threshold=threshold, max_detections=max_lines)


def raw(rows: list[tuple[float, list[float]]]) -> list[torch.Tensor]:
    """(logit of lane, curve) of each line; the logit of none is 0."""
    logits = torch.tensor([[[0.0, logit] for logit, _ in rows]])
    return [logits, torch.tensor([[curve for _, curve in rows]], dtype=torch.float32)]


def test_points_lie_on_the_curve_from_the_bottom_up() -> None:
    curve = [0.9, 0.5, 0.002, 0.3, -0.05, 0.6, 0.2, 0.1]
    found = lstr()(raw([(3.0, curve), (-3.0, curve)]), (720, 1280))
    (lane,) = found.lanes
    assert lane.score == pytest.approx(1 / (1 + math.exp(-3.0)), abs=1e-6)
    assert lane.points[0, 1] == pytest.approx(0.9 * 720, abs=0.5)
    assert (np.diff(lane.points[:, 1]) < 0).all()
    _, _, k, f, m, n, b, c = curve
    for u, v in lane.points.tolist():
        y = v / 720
        assert u == pytest.approx((k / (y - f) ** 2 + m / (y - f) + n + b * y - c) * 1280, abs=0.05)


def test_outputs_of_the_public_export_and_wrong_ones() -> None:
    further = [torch.zeros(1, 7, 2), torch.zeros(1, 7, 8), torch.zeros(1, 240, 240)]
    rows = [(3.0, [0.9, 0.5, 0.0, 0.3, 0.0, 0.6, 0.2, 0.1])] * 7
    one = lstr()
    one.check([*raw(rows), *further])
    assert len(one([*raw(rows), *further], (360, 640)).lanes) == 7
    with pytest.raises(OutputError, match="expected 8"):
        one.check([torch.zeros(1, 7, 2), torch.zeros(1, 7, 6)])
    with pytest.raises(OutputError, match="2 or 5 outputs expected, found 3"):
        one.check(raw(rows) + further[:1])
