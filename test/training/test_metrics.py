"""Scores against cases counted by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from multi_dnn_ros.training.metrics import LaneScore, Truth, mean_average_precision

LABELS = ("car", "truck")


def truth(*rows: tuple[float, float, float, float, int], ignored: list[list[float]] | None = None) -> Truth:
    table = np.array(rows, np.float32).reshape(-1, 5)
    return Truth(table[:, :4], table[:, 4].astype(np.int64), np.array(ignored or [], np.float32).reshape(-1, 4))


def found(*rows: tuple[float, float, float, float, int, float]) -> SimpleNamespace:
    table = np.array(rows, np.float32).reshape(-1, 6)
    return SimpleNamespace(boxes=table[:, :4], class_ids=table[:, 4].astype(np.int64), scores=table[:, 5])


def test_true_boxes_among_a_networks_classes_have_its_numbers() -> None:
    boxes = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = Truth.among(("truck", "car"), boxes, np.array([0, 2, 1]), ("car", "truck", "pedestrian"), boxes[:1])
    np.testing.assert_array_equal(found.boxes, boxes[[0, 2]])
    np.testing.assert_array_equal(found.class_ids, [1, 0])
    assert found.ignored is not None
    none = Truth.among(("tram",), boxes[:0], np.zeros(0, np.int64), ())
    assert none.boxes.shape == (0, 4)
    assert len(none.class_ids) == 0


def test_all_found_is_one() -> None:
    scores = mean_average_precision([found((0, 0, 10, 10, 0, 0.9))], [truth((0, 0, 10, 10, 0))], LABELS)
    assert scores == pytest.approx({"map50": 1.0, "map50_car": 1.0, "map": 1.0})


def test_half_found_is_half_of_the_recall_axis() -> None:
    scores = mean_average_precision(
        [found((0, 0, 10, 10, 0, 0.9))], [truth((0, 0, 10, 10, 0), (50, 50, 60, 60, 0))], LABELS
    )
    assert scores["map50"] == pytest.approx(51 / 101)  # COCO reads the curve at recall 0, 0.01, ..., 1


def test_a_false_box_with_a_higher_score_halves_the_precision() -> None:
    scores = mean_average_precision(
        [found((0, 0, 10, 10, 0, 0.5), (50, 50, 60, 60, 0, 0.9))], [truth((0, 0, 10, 10, 0))], LABELS
    )
    assert scores["map50"] == pytest.approx(0.5)


def test_a_box_counts_at_the_overlap_it_reaches() -> None:
    # 10x10 against 10x8: IoU 0.8, right at 0.5, 0.55, ..., 0.8 and wrong at 0.85, 0.9, 0.95.
    scores = mean_average_precision([found((0, 0, 10, 8, 0, 0.9))], [truth((0, 0, 10, 10, 0))], LABELS)
    assert scores["map50"] == pytest.approx(1.0)
    assert scores["map"] == pytest.approx(0.7)


def test_classes_are_averaged_and_named() -> None:
    scores = mean_average_precision(
        [found((0, 0, 10, 10, 0, 0.9), (50, 50, 70, 70, 0, 0.8))],
        [truth((0, 0, 10, 10, 0), (50, 50, 70, 70, 1))],
        LABELS,
    )
    assert scores["map50_car"] == pytest.approx(1.0)  # the false one comes after all cars are found
    assert scores["map50_truck"] == pytest.approx(0.0)
    assert scores["map50"] == pytest.approx(0.5)


def test_ignored_objects_excuse_detections_only_when_asked() -> None:
    predictions = [found((0, 0, 10, 10, 0, 0.5), (50, 50, 60, 60, 0, 0.9))]
    truths = [truth((0, 0, 10, 10, 0), ignored=[[50, 50, 60, 60]])]
    assert mean_average_precision(predictions, truths, LABELS)["map50"] == pytest.approx(0.5)
    assert mean_average_precision(predictions, truths, LABELS, ignore=True)["map50"] == pytest.approx(1.0)


def test_a_crowd_excuses_the_detections_of_its_class_as_in_coco() -> None:
    predictions = [
        found((0, 0, 10, 10, 0, 0.5), (50, 50, 60, 60, 0, 0.9), (80, 80, 90, 90, 1, 0.5), (51, 50, 61, 60, 1, 0.9))
    ]
    table = truth((0, 0, 10, 10, 0), (80, 80, 90, 90, 1), ignored=[[48, 48, 62, 62]])
    of_cars = Truth(table.boxes, table.class_ids, table.ignored, np.array([0]))
    scores = mean_average_precision(predictions, [of_cars], LABELS)
    assert scores["map50_car"] == pytest.approx(1.0)
    assert scores["map50_truck"] == pytest.approx(0.5)  # a false truck with a higher score than the true one
    among = Truth.among(("truck", "car"), of_cars.boxes, of_cars.class_ids, LABELS, of_cars.ignored, of_cars.crowd_ids)
    assert among.crowd_ids is not None
    assert among.crowd_ids.tolist() == [1]
    none = Truth.among(("truck",), of_cars.boxes, of_cars.class_ids, LABELS, of_cars.ignored, of_cars.crowd_ids)
    assert none.ignored is not None
    assert none.ignored.shape == (0, 4)


def test_images_are_kept_apart() -> None:
    scores = mean_average_precision(
        [found(), found((0, 0, 10, 10, 0, 0.9))], [truth((0, 0, 10, 10, 0)), truth()], LABELS
    )
    assert scores["map50"] == pytest.approx(0.0)


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(ValueError, match="no true box in 1 images"):
        mean_average_precision([found()], [truth()], LABELS)
    with pytest.raises(ValueError, match="0 predictions for 1 images"):
        mean_average_precision([], [truth()], LABELS)


def upright(column: int, width: int = 320) -> np.ndarray:
    mask = np.zeros((192, width), np.uint8)
    mask[:, column] = 1
    return mask


def lane_f1(predicted: np.ndarray, true: np.ndarray) -> float:
    score = LaneScore()
    score.add(predicted, true)
    return score.f1


@pytest.mark.parametrize(("shift", "f1"), [(0, 1.0), (3, 1.0), (4, 0.0)])
def test_a_line_counts_within_three_pixels(shift: int, f1: float) -> None:
    assert lane_f1(upright(100), upright(100 + shift)) == f1


def test_precision_and_recall_by_hand() -> None:
    predicted, true = upright(100), upright(100)
    predicted[:, 200] = 1  # a line too many: precision 1/2
    true[:, 20] = true[:, 300] = 1  # two lines missed: recall 1/3
    score = LaneScore()
    score.add(predicted, true)
    assert (score.precision, score.recall) == (0.5, pytest.approx(1 / 3))
    assert score.f1 == pytest.approx(2 * 0.5 / 3 / (0.5 + 1 / 3))
    assert score.scores() == {"f1": score.f1, "precision": score.precision, "recall": score.recall}


def test_images_are_summed_not_averaged() -> None:
    score = LaneScore()
    score.add(upright(100), upright(100))
    score.add(np.zeros((192, 320), np.uint8), upright(100))
    assert (score.precision, score.recall) == (1.0, 0.5)


def test_masks_of_any_size_are_compared_at_one() -> None:
    wide = np.repeat(np.repeat(upright(100), 3, axis=0), 3, axis=1)
    assert lane_f1(wide, upright(100)) == 1.0
    assert lane_f1(upright(103), wide) == 1.0
    assert lane_f1(upright(105), wide) == 0.0


def test_nothing_there_and_nothing_found() -> None:
    nothing = np.zeros((192, 320), np.uint8)
    assert lane_f1(nothing, nothing) == 1.0
    assert lane_f1(upright(5), nothing) == 0.0
    assert lane_f1(nothing, upright(5)) == 0.0


def test_a_mask_with_channels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(4, 4, 1\)"):
        lane_f1(np.zeros((4, 4, 1)), np.zeros((4, 4)))


@settings(max_examples=30)
@given(
    hnp.arrays(np.uint8, (24, 320), elements=st.integers(0, 1)),
    hnp.arrays(np.uint8, (24, 320), elements=st.integers(0, 1)),
)
def test_f1_is_symmetric_and_bounded(a: np.ndarray, b: np.ndarray) -> None:
    assert 0.0 <= lane_f1(a, b) <= 1.0
    assert lane_f1(a, b) == pytest.approx(lane_f1(b, a))
    assert lane_f1(a, a) == 1.0
