"""``multi-dnn evaluate --thresholds``: precision and recall at each score threshold."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.training.metrics import Truth
from multi_dnn_ros.training.operating_points import OperatingPoint, box_points
from multi_dnn_ros.training.scenes import SceneGenerator


def found(*rows: tuple[float, float, float, float, float, int]) -> SimpleNamespace:
    """(x1, y1, x2, y2, score, class) each."""
    table = np.array(rows, np.float32).reshape(-1, 6)
    return SimpleNamespace(boxes=table[:, :4], scores=table[:, 4], class_ids=table[:, 5].astype(np.int64))


def truth(*boxes: tuple[float, float, float, float], ignored: tuple[tuple[float, ...], ...] = ()) -> Truth:
    array = np.array(boxes, np.float32).reshape(-1, 4)
    return Truth(array, np.zeros(len(array), np.int64), np.array(ignored, np.float32).reshape(-1, 4))


def test_right_false_and_ignored_detections() -> None:
    images = [
        found(
            (0, 0, 10, 10, 0.9, 0),  # right
            (1, 0, 11, 10, 0.8, 0),  # the same object again: false
            (40, 40, 50, 50, 0.7, 0),  # on an ignored box: neither
            (70, 70, 80, 80, 0.6, 0),  # false
            (20, 20, 30, 30, 0.5, 1),  # right place, wrong class: false
        ),
        found((0, 0, 10, 10, 0.55, 0)),  # an image without objects
    ]
    truths = [truth((0, 0, 10, 10), (20, 20, 30, 30), ignored=((38, 38, 52, 52),)), truth()]
    by_threshold = {point.threshold: point for point in box_points(images, truths, (0.5, 0.58, 0.85, 0.95))}
    assert by_threshold[0.5] == OperatingPoint(0.5, 1 / 5, 1 / 2, 4 / 2)
    assert by_threshold[0.58] == OperatingPoint(0.58, 1 / 3, 1 / 2, 2 / 2)
    assert by_threshold[0.85] == OperatingPoint(0.85, 1.0, 1 / 2, 0.0)
    assert by_threshold[0.95] == OperatingPoint(0.95, None, 0.0, 0.0)


def test_without_true_boxes_there_is_no_recall() -> None:
    (point,) = box_points([found((0, 0, 5, 5, 0.9, 0))], [truth()], (0.5,))
    assert point == OperatingPoint(0.5, 0.0, None, 1.0)


def test_there_must_be_as_many_predictions_as_truths() -> None:
    with pytest.raises(ValueError, match="1 predictions for 2 images"):
        box_points([found()], [truth(), truth()])


boxes = st.tuples(
    *(st.integers(0, 20) for _ in range(2)), *(st.integers(21, 40) for _ in range(2)), st.floats(0.05, 1.0),
    st.integers(0, 1),
)  # fmt: skip


@given(st.lists(boxes, max_size=8), st.lists(st.tuples(*(st.integers(k, k + 19) for k in (0, 0, 20, 20))), max_size=5))
def test_a_higher_threshold_never_finds_more(rows: list[tuple], true: list[tuple]) -> None:
    points = box_points([found(*rows)], [truth(*true)])
    for lower, higher in itertools.pairwise(points):
        assert (higher.recall or 0.0) <= (lower.recall or 0.0)
        assert higher.false_per_image <= lower.false_per_image
    for point in points:
        assert point.precision is None or 0.0 <= point.precision <= 1.0


def coco(folder: Path, category: str, count: int = 3) -> Path:
    """Generated scenes in COCO's format, with the boxes of pedestrians if `category` is `pedestrian`, else without."""
    (folder / "annotations").mkdir(parents=True)
    (folder / "val").mkdir()
    images, annotations = [], []
    generator = SceneGenerator(320, 240, 3)
    for number in range(1, count + 1):
        scene = generator.scene(number)
        cv2.imwrite(str(folder / "val" / f"{number}.png"), scene.image[..., ::-1])
        images.append({"id": number, "file_name": f"{number}.png", "width": 320, "height": 240})
        for x1, y1, x2, y2 in scene.boxes[scene.class_ids == 2].tolist() if category == "pedestrian" else ():
            annotations.append({"image_id": number, "category_id": 1, "bbox": [x1, y1, x2 - x1, y2 - y1]})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "pedestrian"}]}
    (folder / "annotations" / "instances_val.json").write_text(json.dumps(content))
    return folder


def test_command_reports_every_threshold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, people = coco(tmp_path / "empty", "none"), coco(tmp_path / "people", "pedestrian", 6)
    command = ["evaluate", "builtin:pedestrian", "--data", f"coco:{people}", "--device", "cpu"]
    report = tmp_path / "report"
    assert main([*command, "--data", f"coco:{empty}", "--thresholds", "--report", str(report)]) == 0
    assert "score threshold" in capsys.readouterr().out
    (network,) = json.loads((report / "report.json").read_text())["networks"]
    points = network["operating_points"]
    assert [point["threshold"] for point in points[f"coco:{people}"]] == [round(0.05 * k, 2) for k in range(1, 20)]
    assert points[f"coco:{people}"][0]["recall"] >= 0.5
    assert all(point["recall"] is None for point in points[f"coco:{empty}"])
    assert points[f"coco:{empty}"][0]["false_per_image"] >= points[f"coco:{empty}"][-1]["false_per_image"]
    assert "## builtin:pedestrian on" in (report / "report.md").read_text()


def test_images_without_objects_need_thresholds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = coco(tmp_path, "none", 1)
    assert main(["evaluate", "builtin:pedestrian", "--data", f"coco:{empty}", "--device", "cpu"]) == 1
    assert "no true box in 1 images" in (error := capsys.readouterr().err)
    assert "--thresholds counts false detections there" in error
