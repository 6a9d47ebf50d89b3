"""Decoders find the boxes and lines that were encoded in raw outputs."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.decoders.base import suppress
from multi_dnn_ros.decoders.grid import GridDecoder
from multi_dnn_ros.decoders.lane_map import LaneDecoder
from multi_dnn_ros.decoders.yolo import YoloDecoder
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import OutputError

LABELS = ("car", "truck", "bus")
SIZE = (480, 640)

boxes = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.floats(0.3, 0.9), st.floats(0.3, 0.9), st.integers(0, 2)),
    min_size=0,
    max_size=8,
    unique_by=lambda box: box[:2],
)


def placed(box: tuple[int, int, float, float, int]) -> np.ndarray:
    """A box inside its own cell of a 4 x 4 grid, so that no two boxes overlap, in source pixels."""
    column, row, width, height, _ = box
    cell_w, cell_h = SIZE[1] / 4, SIZE[0] / 4
    cx, cy = (column + 0.5) * cell_w, (row + 0.5) * cell_h
    w, h = width * cell_w, height * cell_h
    return np.array([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2])


@settings(max_examples=40)
@given(boxes, st.sampled_from(["stretch", "letterbox"]))
def test_yolo_decodes_the_encoded_boxes(found: list, fit: str) -> None:
    preprocess = Preprocess(320, 320, fit=fit)
    geometry = preprocess.geometry(SIZE)
    raw = torch.zeros(1, 4 + len(LABELS), 20)
    for index, box in enumerate(found):
        x1, y1, x2, y2 = placed(box)
        x1, x2 = (x * geometry.scale_x + geometry.left for x in (x1, x2))
        y1, y2 = (y * geometry.scale_y + geometry.top for y in (y1, y2))
        raw[0, :4, index] = torch.tensor([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1])
        raw[0, 4 + box[4], index] = 0.9 - 0.01 * index
    result = YoloDecoder(preprocess, LABELS)((raw,), SIZE)
    assert len(result) == len(found)
    assert list(result.class_ids) == [box[4] for box in found]  # best score first, as in the input
    for got, box in zip(result.boxes, found, strict=True):
        np.testing.assert_allclose(got, placed(box), atol=0.01)
    only = YoloDecoder(preprocess, LABELS, keep=["truck"])((raw,), SIZE)
    assert len(only) == sum(box[4] == 1 for box in found)


def test_grid_decodes_an_encoded_box() -> None:
    """One cell of FastestDet's head, with the formula of its documentation."""
    raw = torch.full((1, 5 + len(LABELS), 22, 22), 0.0)
    raw[0, 0, 10, 5] = 0.81
    raw[0, 1:3, 10, 5] = torch.atanh(torch.tensor([0.25, 0.5]))
    raw[0, 3:5, 10, 5] = torch.logit(torch.tensor([0.2, 0.1]))
    raw[0, 5 + 2, 10, 5] = 0.64
    result = GridDecoder(Preprocess(352, 352), LABELS)((raw,), SIZE)
    (box,) = result.boxes
    cx, cy, w, h = (5 + 0.25) / 22 * 640, (10 + 0.5) / 22 * 480, 0.2 * 640, 0.1 * 480
    np.testing.assert_allclose(box, [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], rtol=1e-4)
    assert result.scores[0] == pytest.approx(0.81**0.6 * 0.64**0.4, rel=1e-4)
    assert result.labels[result.class_ids[0]] == "bus"


def lane_logits(lines: list[np.ndarray]) -> torch.Tensor:
    mask = np.zeros((192, 320), np.uint8)
    for line in lines:
        cv2.polylines(mask, [line.astype(np.int32)], False, 255, 3)
    return torch.from_numpy(np.where(mask > 0, 4.0, -4.0).astype(np.float32))[None, None]


def line(bottom: float, top: float, begin: int = 191, end: int = 80) -> np.ndarray:
    v = np.arange(begin, end, -1)
    u = bottom + (top - bottom) * (191 - v) / (191 - 80)
    return np.stack([u, v], 1)


def test_lanes_are_numbered_from_the_left_and_dashes_are_joined() -> None:
    dashes = [line(160, 160, begin, begin - 14) for begin in range(188, 90, -28)]
    result = LaneDecoder(Preprocess(320, 192), ("lane",))(
        (lane_logits([line(20, 130), *dashes, line(300, 190)]),), SIZE
    )
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


@pytest.mark.filterwarnings("error")
def test_a_hole_in_a_line_with_a_very_low_logit_is_no_error() -> None:
    logits = torch.full((1, 1, 192, 320), -9.0)
    logits[..., 20:180, 100:106] = 9.0
    logits[..., 90, 102] = -200.0
    decoder = LaneDecoder(Preprocess(320, 192), ("lane",))
    (lane,) = decoder((logits,), (192, 320)).lanes
    assert 0.9 < lane.score < 1.0


def test_lanes_of_several_classes_in_two_parts_are_the_same() -> None:
    labels = ("none", "car", "solid", "dashed")
    lane = lane_logits([line(20, 130), line(300, 190)])[0, 0]
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
    with pytest.raises(OutputError, match="the outputs holds NaN or infinite values"):
        parts.decode(parts.condense((raw,)), SIZE)


def test_an_empty_map_and_a_blob_have_no_lines() -> None:
    decoder = LaneDecoder(Preprocess(320, 192), ("lane",))
    for logits in (torch.full((1, 1, 192, 320), -4.0), lane_logits([np.array([[10, 150], [300, 150]])])):
        result = decoder((logits,), SIZE)
        assert result.lanes == ()
        assert not result.mask.any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_an_error(bad: float) -> None:
    raw = torch.zeros(1, 7, 5)
    raw[0, 0, 0] = bad
    with pytest.raises(OutputError, match="output 0 holds NaN or infinite values: 1 of 35"):
        YoloDecoder(Preprocess(64, 64), LABELS)((raw,), SIZE)


def test_the_error_for_a_wrong_shape_names_both_shapes() -> None:
    with pytest.raises(OutputError, match=r"shapes \(1, 20, 7\), but decoder yolo .* transposed"):
        YoloDecoder(Preprocess(64, 64), LABELS)((torch.zeros(1, 20, 7),), SIZE)
    with pytest.raises(OutputError, match=r"shapes \(1, 9, 22, 22\)"):
        GridDecoder(Preprocess(64, 64), LABELS)((torch.zeros(1, 9, 22, 22),), SIZE)
    with pytest.raises(OutputError, match=r"expected, found 2"):
        LaneDecoder(Preprocess(64, 64), ("lane",))((torch.zeros(1, 1, 4, 4),) * 2, SIZE)


@st.composite
def road_maps(draw: st.DrawFn) -> tuple[torch.Tensor, Preprocess, tuple[int, int]]:
    """Logits of curved and dashed lines that enter and leave the image anywhere; a Preprocess; an image size."""
    across, down = draw(st.integers(40, 320)), draw(st.integers(24, 200))
    mask = np.zeros((down, across), np.uint8)
    outside = st.floats(-0.4, 1.4)
    for _ in range(draw(st.integers(1, 4))):
        ends, middle = draw(st.tuples(outside, outside, outside, outside)), draw(st.tuples(outside, outside))
        t = np.linspace(0.0, 1.0, 60)[:, None]
        begin, end, pull = np.array(ends[:2]), np.array(ends[2:]), np.array(middle)
        curve = (1 - t) ** 2 * begin + 2 * t * (1 - t) * pull + t**2 * end
        points = np.round(curve * (across, down)).astype(np.int32)
        dash = draw(st.sampled_from([60, 15, 6]))
        for first in range(0, 60, 2 * dash):
            cv2.polylines(mask, [points[first : first + dash]], False, 1, draw(st.integers(1, 4)))
    logits = torch.from_numpy(np.where(mask > 0, 4.0, -4.0).astype(np.float32))[None, None]
    stride = draw(st.sampled_from([1, 2, 8]))
    preprocess = Preprocess(across * stride, down * stride, fit=draw(st.sampled_from(["stretch", "letterbox"])),
                            centered=draw(st.booleans()))  # fmt: skip
    side = st.integers(1, 64) | st.integers(65, 2000)
    return logits, preprocess, (draw(side), draw(side))


@settings(max_examples=300)
@given(road_maps())
def test_lane_points_lie_inside_the_image(given_map: tuple[torch.Tensor, Preprocess, tuple[int, int]]) -> None:
    logits, preprocess, (height, width) = given_map
    result = LaneDecoder(preprocess, ("lane",))((logits,), (height, width))
    for lane in result.lanes:
        assert len(lane.points) > 0
        u, v = lane.points.T
        assert u.min() >= 0.0
        assert u.max() <= width - 1
        assert v.min() >= 0.0
        assert v.max() <= height - 1
        assert (np.diff(v) <= 0.0).all()  # from the bottom up


def test_points_of_a_line_end_at_the_edge_of_the_image() -> None:
    """All points lie on the curve: none is moved to the edge."""
    v = np.arange(191, 60, -1)
    bend = np.stack([-2.0 + 0.012 * (v - 120.0) ** 2, v], 1)
    (lane,) = LaneDecoder(Preprocess(320, 192), ("lane",))((lane_logits([bend]),), SIZE).lanes
    c0, c1, c2 = lane.curve
    along = np.arange(200.0, 400.0)
    assert (c0 + along * (c1 + along * c2)).min() < 0.0  # the curve leaves the image
    u, v = lane.points.T
    assert len(u) > 30
    assert u.min() >= 0.0
    np.testing.assert_allclose(u, c0 + v * (c1 + v * c2), atol=0.01)


def test_finite_values_whose_sum_overflows_float32_are_accepted() -> None:
    raw = torch.zeros(1, 7, 4)
    raw[0, :4, :2] = 3e38  # the sum of two exceeds float32
    raw[0, :4, 2] = torch.tensor([160.0, 120.0, 40.0, 20.0])
    raw[0, 4, 2] = 0.9
    result = YoloDecoder(Preprocess(320, 240), LABELS)((raw,), (240, 320))
    np.testing.assert_allclose(result.boxes, [[140.0, 110.0, 180.0, 130.0]])


def test_a_box_of_any_size_does_not_break_the_suppression_of_others() -> None:
    raw = torch.zeros(1, 7, 4)
    raw[0, :4, 0] = 3e38  # its right edge would be infinite
    raw[0, :4, 1:3] = torch.tensor([160.0, 120.0, 40.0, 20.0])[:, None]
    raw[0, 4, :3] = torch.tensor([0.9, 0.8, 0.7])
    result = YoloDecoder(Preprocess(320, 240), LABELS)((raw,), (240, 320))
    np.testing.assert_allclose(result.boxes, [[140.0, 110.0, 180.0, 130.0]])
    np.testing.assert_allclose(result.scores, [0.8])


def test_a_box_beyond_the_edge_of_the_image_does_not_suppress_one_of_another_class() -> None:
    boxes = np.array([[0, 0, 30, 30], [-40, -40, 30, 30], [-40, -40, 31, 30]], np.float32)
    scores = np.array([0.9, 0.8, 0.7], np.float32)
    kept = suppress(boxes, scores, np.array([0, 1, 1]), 0.1)
    np.testing.assert_array_equal(kept, [0, 1])  # the third one is suppressed by the second one, of its own class


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), count=st.sampled_from([1, 40, 999, 1001, 1500]))
def test_boxes_with_equal_scores_stay_in_order(seed: int, count: int) -> None:
    """On both sides of the number of boxes above which torchvision suppresses one class at a time."""
    rng = np.random.default_rng(seed)
    places = rng.permutation(count)  # boxes that do not overlap, most of them at negative coordinates
    boxes = (np.stack([places % 40, places // 40] * 2, 1) * 10 - [300, 300, 292, 292]).astype(np.float32)
    scores = rng.integers(1, 4, count).astype(np.float32) / 4
    kept = suppress(boxes, scores, rng.integers(0, 3, count), 0.5)
    np.testing.assert_array_equal(kept, np.argsort(-scores, kind="stable"))
