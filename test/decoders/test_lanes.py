"""Lane lines in maps of probabilities: drawn roads, noise, dashes, and the edge of the image."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.decoders.lane_lines import RUNS_PER_ROW, find_runs
from multi_dnn_ros.decoders.lane_map import LaneDecoder, TwinLiteNetDecoder
from multi_dnn_ros.decoders.yolop import YolopLaneDecoder
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Lanes, OutputError

SIZE = (480, 640)


def logits_of(mask: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.where(mask > 0, 4.0, -4.0).astype(np.float32))[None, None]


def lanes_in(mask: np.ndarray, size: tuple[int, int] | None = None) -> Lanes:
    """The lines of a map of one class, in pixels of the map unless the image has another size."""
    height, width = mask.shape
    return LaneDecoder(Preprocess(width, height), ("lane",))((logits_of(mask),), size or mask.shape)


def drawn(lines: list[np.ndarray]) -> np.ndarray:
    mask = np.zeros((192, 320), np.uint8)
    for line in lines:
        cv2.polylines(mask, [line.astype(np.int32)], False, 255, 3)
    return mask


def line(bottom: float, top: float, begin: int = 191, end: int = 80) -> np.ndarray:
    v = np.arange(begin, end, -1)
    u = bottom + (top - bottom) * (191 - v) / (191 - 80)
    return np.stack([u, v], 1)


def test_lanes_are_numbered_from_the_left_and_dashes_are_joined() -> None:
    dashes = [line(160, 160, begin, begin - 14) for begin in range(188, 90, -28)]
    result = lanes_in(drawn([line(300, 190), line(20, 130), *dashes]), SIZE)
    assert [lane.number for lane in result.lanes] == [1, 2, 3]
    assert result.mask.shape == SIZE
    assert set(np.unique(result.mask)) == {0, 1, 2, 3}
    for lane, (bottom, top) in zip(result.lanes, [(20, 130), (160, 160), (300, 190)], strict=True):
        c0, c1, c2 = lane.curve
        for v in (100, 170):
            expected = (bottom + (top - bottom) * (191 - v) / 111) * 2
            assert c0 + c1 * (v * 2.5) + c2 * (v * 2.5) ** 2 == pytest.approx(expected, abs=8)
        assert lane.points[0, 1] > lane.points[-1, 1]  # from the bottom up
        assert lane.score > 0.9


def test_lanes_of_several_classes_in_two_parts_are_the_same() -> None:
    labels = ("none", "car", "solid", "dashed")
    lane = logits_of(drawn([line(20, 130), line(300, 190)]))[0, 0]
    raw = torch.randn(1, 4, 192, 320, generator=torch.Generator().manual_seed(0)) * 0.2
    raw[0, 2:] -= 4.0
    raw[0, 2, :, :160] += lane[:, :160] + 4.0
    raw[0, 3, :, 160:] += lane[:, 160:] + 4.0
    decoder = LaneDecoder(Preprocess(320, 192), labels, keep=["solid", "dashed"])
    parts = decoder.in_two_parts()
    assert parts is not None
    condensed = parts.condense((raw,))
    assert sum(tensor.nbytes for tensor in condensed) < raw.nbytes / 3
    one, two = decoder((raw,), SIZE), parts.decode(condensed, SIZE)
    assert len(one.lanes) == 2
    np.testing.assert_array_equal(two.mask, one.mask)
    assert [lane.score for lane in two.lanes] == pytest.approx([lane.score for lane in one.lanes])
    raw[0, 1, 5, 5] = float("nan")
    with pytest.raises(OutputError, match="holds NaN or infinite values"):
        parts.decode(parts.condense((raw,)), SIZE)


def test_blobs_and_bars_are_no_lines() -> None:
    mask = np.zeros((192, 320), np.uint8)
    cv2.circle(mask, (80, 100), 20, 1, -1)
    cv2.rectangle(mask, (150, 150), (300, 154), 1, -1)
    result = lanes_in(mask)
    assert result.lanes == ()
    assert not result.mask.any()


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1])
def test_of_a_noisy_mask_a_bounded_number_of_runs_is_considered_and_a_true_line_is_found(share: float) -> None:
    mask = (np.random.default_rng(1).random((360, 640)) < share).astype(np.uint8)
    for v in range(120, 360):
        mask[v, 290:350] = 0
        mask[v, 317 : 323 + v // 60] = 1
    assert len(find_runs(mask).begin) <= RUNS_PER_ROW * 360
    assert any(abs(lane.curve[0] - 319) < 3 and np.ptp(lane.points[:, 1]) > 200 for lane in lanes_in(mask).lanes)


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
    lanes = lanes_in(mask).lanes
    v = height * 0.8
    share = (v - vanishing_v) / (height - vanishing_v)
    expected = vanishing_u + (bottoms - vanishing_u) * share
    found = np.polynomial.polynomial.polyval(v, np.array([lane.curve for lane in lanes]).reshape(-1, 3).T)
    for u in expected[(expected > 5) & (expected < width - 5)]:
        assert np.abs(found - u).min() < 3.0
    assert len(lanes) <= len(bottoms) + 2


@st.composite
def road_maps(draw: st.DrawFn) -> tuple[torch.Tensor, Preprocess, tuple[int, int]]:
    """Logits of curved and dashed lines that enter and leave the image anywhere, or of noise; a Preprocess; a size."""
    across, down = draw(st.integers(40, 320)), draw(st.integers(24, 200))
    mask = np.zeros((down, across), np.uint8)
    outside = st.floats(-0.4, 1.4)
    if draw(st.integers(0, 9)) == 0:
        noise = np.random.default_rng(draw(st.integers(0, 99))).standard_normal((down, across))
        smooth = cv2.GaussianBlur(noise, (0, 0), draw(st.sampled_from([1.0, 4.0])))
        mask = (smooth > draw(st.floats(0.0, 1.5)) * smooth.std()).astype(np.uint8)
    for _ in range(draw(st.integers(1, 4))):
        ends, middle = draw(st.tuples(outside, outside, outside, outside)), draw(st.tuples(outside, outside))
        t = np.linspace(0.0, 1.0, 60)[:, None]
        begin, end, pull = np.array(ends[:2]), np.array(ends[2:]), np.array(middle)
        curve = (1 - t) ** 2 * begin + 2 * t * (1 - t) * pull + t**2 * end
        points = np.round(curve * (across, down)).astype(np.int32)
        dash = draw(st.sampled_from([60, 15, 6]))
        for first in range(0, 60, 2 * dash):
            cv2.polylines(mask, [points[first : first + dash]], False, 1, draw(st.integers(1, 4)))
    stride = draw(st.sampled_from([1, 2, 8]))
    preprocess = Preprocess(across * stride, down * stride, fit=draw(st.sampled_from(["stretch", "letterbox"])),
                            centered=draw(st.booleans()))  # fmt: skip
    side = st.integers(1, 64) | st.integers(65, 2000)
    return logits_of(mask), preprocess, (draw(side), draw(side))


@settings(max_examples=200, deadline=None)
@given(road_maps())
def test_lane_points_lie_inside_the_image_and_every_line_has_pixels(
    given_map: tuple[torch.Tensor, Preprocess, tuple[int, int]],
) -> None:
    logits, preprocess, (height, width) = given_map
    result = LaneDecoder(preprocess, ("lane",))((logits,), (height, width))
    assert set(np.unique(result.numbers)) - {0} == {lane.number for lane in result.lanes}
    for lane in result.lanes:
        assert np.isfinite(lane.curve).all()
        u, v = lane.points.T
        assert len(u) > 0
        assert u.min() >= 0.0
        assert u.max() <= width - 1
        assert v.min() >= 0.0
        assert v.max() <= height - 1
        assert (np.diff(v) <= 0.0).all()  # from the bottom up


def test_twinlitenet_gives_the_lines_of_its_second_map() -> None:
    area, lines = torch.randn(1, 2, 90, 160, generator=torch.Generator().manual_seed(0)), torch.zeros(1, 2, 90, 160)
    lines[0, 0] = 8.0
    lines[0, :, 30:, 40:44] = torch.tensor([-4.0, 4.0])[:, None, None]
    lines[0, :, 30:, 110:114] = torch.tensor([-4.0, 4.0])[:, None, None]
    decoder = TwinLiteNetDecoder(Preprocess(160, 90), ("none", "lane"))
    result = decoder([area, lines], (720, 1280))
    assert len(result.lanes) == 2
    single = LaneDecoder(Preprocess(160, 90), ("none", "lane"))([lines], (720, 1280))
    np.testing.assert_array_equal(result.numbers, single.numbers)
    parts = decoder.in_two_parts()
    assert parts is not None
    np.testing.assert_array_equal(parts.decode(parts.condense([area, lines]), (720, 1280)).numbers, single.numbers)
    with pytest.raises(OutputError, match=r"decoder twinlitenet with .* reads .* expected, found 1"):
        decoder([lines], (720, 1280))


def test_lines_of_yolop_are_where_the_line_is_more_probable_than_none() -> None:
    rows, area, lines = torch.rand(1, 126, 6), torch.rand(1, 2, 32, 64), torch.rand(1, 2, 32, 64)
    lines[0, 0], lines[0, 1] = 0.9, 0.2
    lines[0, 1, 8:, 20:22] = 0.95  # no line is certain, and the two do not add up to 1
    decoder = YolopLaneDecoder(Preprocess(64, 32), ("none", "lane"), score_threshold=0.5)
    for outputs in ([rows, area, lines], [area, lines, rows]):
        (lane,) = decoder(outputs, (32, 64)).lanes
        assert abs(lane.points[:, 0] - 20.5).max() < 0.6
        assert lane.score == pytest.approx(0.95 / 1.85, abs=1e-4)
    lines[0, 1, 8:, 20:22] = 0.85
    assert decoder([rows, area, lines], (32, 64)).lanes == ()
    with pytest.raises(OutputError, match=r"decoder yolop_lanes with .* reads .* 3 outputs"):
        decoder.check([area, lines])
