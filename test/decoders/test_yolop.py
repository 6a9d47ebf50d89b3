"""YOLOP: boxes are read like YOLOv5's; lines and drivable area are where the second value of a map is larger."""

from __future__ import annotations

import numpy as np
import pytest
import reference_decoding
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.decoders.layout import Layout
from multi_dnn_ros.decoders.recognition import recognize
from multi_dnn_ros.decoders.yolop import YolopDecoder, YolopDrivableDecoder, YolopLaneDecoder
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import NO_CLASS, OutputError

SIZE = (64, 32)


def maps(seed: int) -> list[torch.Tensor]:
    random = np.random.default_rng(seed)
    return [torch.from_numpy(random.uniform(0, 1, (1, 2, SIZE[1], SIZE[0])).astype(np.float32)) for _ in range(2)]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.tuples(st.integers(10, 500), st.integers(10, 500)))
def test_boxes_are_those_of_the_definition(seed: int, size: tuple[int, int]) -> None:
    rows = reference_decoding.yolov5(np.random.default_rng(seed), SIZE, 1)
    preprocess, options = Preprocess(*SIZE, fit="letterbox"), reference_decoding.Options()
    decoder = YolopDecoder(
        preprocess, ["vehicle"], score_threshold=options.threshold, iou_threshold=options.iou, max_detections=100
    )
    candidates = reference_decoding.read_yolov5(rows, SIZE)
    expected = reference_decoding.detections(candidates, preprocess, size, options, suppress=True)
    raw = [*map(torch.from_numpy, rows), *maps(seed)]
    decoder.check(raw)
    parts = decoder.in_two_parts()
    assert parts is not None
    for found in (decoder(raw, size), parts.decode(parts.condense(raw), size)):
        got = [(*box, score) for box, score in zip(found.boxes, found.scores, strict=True)]
        np.testing.assert_allclose(got, [row[:5] for row in expected], rtol=1e-4, atol=0.02)


def test_lines_are_where_the_line_is_more_probable_than_none() -> None:
    rows, (area, lines) = torch.rand(1, 126, 6), maps(0)
    lines[0, 0], lines[0, 1] = 0.9, 0.2
    lines[0, 1, 8:, 20:22] = 0.95  # no line is certain, and the two do not add up to 1
    decoder = YolopLaneDecoder(Preprocess(*SIZE), ("none", "lane"), score_threshold=0.5)
    decoder.check([rows, area, lines])
    for outputs in ([rows, area, lines], [area, lines, rows]):
        (lane,) = decoder(outputs, (32, 64)).lanes
        assert abs(lane.points[:, 0] - 20.5).max() < 0.6
        assert lane.score == pytest.approx(0.95 / 1.85, abs=1e-4)
    lines[0, 1, 8:, 20:22] = 0.85
    assert decoder([rows, area, lines], (32, 64)).lanes == ()
    parts = decoder.in_two_parts()
    assert parts is not None
    assert parts.decode(parts.condense([rows, area, lines]), (32, 64)).lanes == ()
    with pytest.raises(OutputError, match=r"decoder yolop_lanes with .* reads .* 3 outputs"):
        decoder.check([area, lines])


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.6, 0.9])
def test_drivable_is_where_its_share_of_the_two_probabilities_is_large_enough(threshold: float) -> None:
    rows, (area, lines) = torch.rand(1, 126, 6), maps(1)
    decoder = YolopDrivableDecoder(Preprocess(*SIZE), ("none", "drivable"), score_threshold=threshold)
    share = (area[0, 1] / area[0].sum(0)).numpy()
    expected = np.where(share >= (threshold or 0.5), 0, NO_CLASS)
    assert set(np.unique(expected)) == {0, NO_CLASS}
    parts = decoder.in_two_parts()
    assert parts is not None
    for outputs in ([rows, area, lines], [area, lines, rows]):
        decoder.check(outputs)
        for found in (decoder(outputs, (32, 64)), parts.decode(parts.condense(outputs), (32, 64))):
            np.testing.assert_array_equal(found.class_ids, expected)
    with pytest.raises(OutputError, match=r"decoder yolop_drivable with .* reads .* twice"):
        decoder.check([area])


def test_recognized_by_the_kind_of_results() -> None:
    layout = Layout(((1, 25200, 6), (1, 2, 640, 640), (1, 2, 640, 640)), (640, 640))
    assert recognize(layout).chosen == "yolop"
    assert recognize(layout, "detections").chosen == "yolop"
    assert recognize(layout, "lanes").chosen == "yolop_lanes"
    assert recognize(layout, "lanes").decided
    assert recognize(layout, "drivable_area").chosen == "yolop_drivable"
    assert recognize(Layout(((1, 2, 360, 640), (1, 2, 360, 640)), (640, 360))).chosen == "twinlitenet"
