"""Scores against cases counted by hand, and `multi-dnn evaluate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.training.metrics import LaneScore, Truth, box_points, mean_average_precision
from multi_dnn_ros.vision.result_kind import RESULT_KINDS

pytestmark = pytest.mark.usefixtures("one_thread")
LABELS = ("car", "truck")
CPU = torch.device("cpu")
A, B, C = (0, 0, 10, 10), (50, 50, 60, 60), (80, 80, 90, 90)


def truth(*rows: tuple[tuple[int, ...], int], crowds: Sequence[bool] | None = None) -> Truth:
    boxes = np.array([box for box, _ in rows], np.float32).reshape(-1, 4)
    found = None if crowds is None else np.array(crowds)
    return Truth(boxes, np.array([k for _, k in rows], np.int64), found)


def found(*rows: tuple[tuple[int, ...], int, float]) -> SimpleNamespace:
    boxes = np.array([box for box, _, _ in rows], np.float32).reshape(-1, 4)
    return SimpleNamespace(
        boxes=boxes, class_ids=np.array([row[1] for row in rows], np.int64), scores=np.array([row[2] for row in rows])
    )


@pytest.mark.parametrize(
    ("predicted", "true", "expected"),
    [
        (found((A, 0, 0.9)), truth((A, 0)), {"map50": 1.0, "map50_car": 1.0, "map": 1.0}),
        (found((A, 0, 0.9)), truth((A, 0), (B, 0)), {"map50": 51 / 101}),  # recall is read at 0, 0.01, ..., 1
        (found((A, 0, 0.5), (B, 0, 0.9)), truth((A, 0)), {"map50": 0.5}),  # a false one with a higher score
        (found(((0, 0, 10, 8), 0, 0.9)), truth((A, 0)), {"map50": 1.0, "map": 0.7}),  # IoU 0.8: 7 of 10 thresholds
        (found((A, 0, 0.9), (B, 0, 0.8)), truth((A, 0), (B, 1)), {"map50_car": 1.0, "map50_truck": 0.0, "map50": 0.5}),
        # A crowd of cars excuses false cars, but not false trucks.
        (
            found((A, 0, 0.5), (B, 0, 0.9), (C, 1, 0.5), (B, 1, 0.9)),
            truth((A, 0), (C, 1), ((48, 48, 62, 62), 0), crowds=[False, False, True]),
            {"map50_car": 1.0, "map50_truck": 0.5},
        ),
    ],
)
def test_average_precision(predicted: Any, true: Truth, expected: dict[str, float]) -> None:
    scores = mean_average_precision([predicted], [true], LABELS)
    assert {name: scores[name] for name in expected} == pytest.approx(expected)


def test_images_are_kept_apart_and_must_show_something() -> None:
    predictions, truths = [found(), found((A, 0, 0.9))], [truth((A, 0)), truth()]
    assert mean_average_precision(predictions, truths, LABELS)["map50"] == 0.0
    with pytest.raises(ValueError, match="no true box in 1 images"):
        mean_average_precision([found()], [truth()], LABELS)
    with pytest.raises(ValueError, match="0 predictions for 1 images"):
        mean_average_precision([], [truth()], LABELS)


def test_true_boxes_among_a_networks_classes_have_its_numbers() -> None:
    shown = truth((A, 0), (B, 2), (C, 1), crowds=[False, False, True]).among(("car", "van", "truck"), ("truck", "car"))
    assert (shown.boxes.tolist(), shown.class_ids.tolist()) == ([list(A), list(B)], [1, 0])
    assert shown.crowds is not None
    assert not shown.crowds.any()
    assert len(truth((A, 0)).among(("car",), ()).boxes) == 0


def test_precision_and_recall_by_threshold() -> None:
    predictions = [found((A, 0, 0.9), (B, 0, 0.6)), found((A, 1, 0.3))]
    truths = [truth((A, 0), (C, 0)), truth((A, 1))]
    low, middle, high = box_points(predictions, truths, 2, (0.2, 0.5, 0.95))
    assert low == {"threshold": 0.2, "precision": 2 / 3, "recall": 2 / 3, "false_per_image": 0.5}
    assert (middle["precision"], middle["recall"], middle["false_per_image"]) == (1 / 2, 1 / 3, 0.5)
    assert (high["precision"], high["recall"], high["false_per_image"]) == (None, 0.0, 0.0)


# --- lanes ------------------------------------------------------------------------------------------------------------


def upright(column: int, width: int = 320) -> np.ndarray:
    mask = np.zeros((192, width), np.uint8)
    mask[:, column] = 1
    return mask


def lane_f1(predicted: np.ndarray, true: np.ndarray) -> float:
    score = LaneScore()
    score.add(predicted, true)
    return score.f1


NOTHING, WIDE = np.zeros((192, 320), np.uint8), np.repeat(np.repeat(upright(100), 3, axis=0), 3, axis=1)


@pytest.mark.parametrize(
    ("predicted", "true", "f1"),
    [
        (upright(100), upright(100), 1.0),
        (upright(100), upright(103), 1.0),
        (upright(100), upright(104), 0.0),
        (WIDE, upright(100), 1.0),
        (upright(105), WIDE, 0.0),
        (NOTHING, NOTHING, 1.0),
        (upright(5), NOTHING, 0.0),
        (NOTHING, upright(5), 0.0),
    ],
)
def test_a_line_counts_within_three_pixels_of_320(predicted: np.ndarray, true: np.ndarray, f1: float) -> None:
    assert lane_f1(predicted, true) == f1


def test_pixels_are_summed_over_images() -> None:
    predicted, true = upright(100), upright(100)
    predicted[:, 200] = 1  # a line too many: precision 1/2
    true[:, 20] = true[:, 300] = 1  # two lines missed: recall 1/3
    score = LaneScore()
    score.add(predicted, true)
    assert score.scores() == pytest.approx({"f1": 0.4, "precision": 0.5, "recall": 1 / 3})
    score.add(NOTHING, upright(100))
    assert (score.precision, score.recall) == (0.5, 0.25)
    with pytest.raises(ValueError, match=r"\(4, 4, 1\)"):
        score.add(np.zeros((4, 4, 1)), np.zeros((4, 4)))


MASKS = hnp.arrays(np.uint8, (24, 320), elements=st.integers(0, 1))


@settings(max_examples=30)
@given(MASKS, MASKS)
def test_f1_is_symmetric_and_bounded(a: np.ndarray, b: np.ndarray) -> None:
    assert 0.0 <= lane_f1(a, b) <= 1.0
    assert lane_f1(a, b) == pytest.approx(lane_f1(b, a))
    assert lane_f1(a, a) == 1.0


# --- multi-dnn evaluate -----------------------------------------------------------------------------------------------


def evaluated(tmp_path: Path, *command: str | Path, code: int = 0) -> list[dict[str, Any]]:
    """The rows of the report."""
    assert main(["evaluate", *map(str, command), "--device", "cpu", "--report", str(tmp_path / "report")]) == code
    return json.loads((tmp_path / "report" / "report.json").read_text())["networks"]


def pooled_colours(path: Path, bias: tuple[float, float] = (0.0, 0.0)) -> Path:
    """A classifier of mean colours."""
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)).eval()
    with torch.no_grad():
        network[2].weight.copy_(torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]))
        network[2].bias.copy_(torch.tensor(bias))
    torch.export.save(torch.export.export(network, (torch.zeros(1, 3, 16, 16),)), path)
    return path


def test_a_limit_scores_images_of_all_classes(colours: Path, tmp_path: Path) -> None:
    """Folders list one class after another; the first images alone would show a useless network as perfect."""
    model = pooled_colours(tmp_path / "first.pt2", bias=(9.0, 0.0))  # always the first class
    for limit in (2, 4):
        (row,) = evaluated(tmp_path, model, "--data", f"classes:{colours}", "--limit", str(limit))
        assert row["scores"][f"classes:{colours}"] == {"images": limit, "top1": 0.5, "top5": 1.0}


@pytest.mark.parametrize("model", ["builtin:object", "builtin:lane"])
def test_thresholds_trade_recall_for_precision(model: str, tmp_path: Path) -> None:
    road = f"road:{tmp_path / 'road'}"
    (row,) = evaluated(tmp_path, model, "--data", road, "--scenes", "4", "--limit", "4", "--thresholds")
    points = row["operating_points"][road]
    assert [point["threshold"] for point in points] == pytest.approx([0.05 * k for k in range(1, 20)])
    assert points[0]["recall"] > 0.8 > points[-1]["recall"]
    assert points[0]["precision"] < points[10]["precision"]
    assert (points[0]["false_per_image"] is None) is (model == "builtin:lane")


def test_rows_of_several_networks_alternate_and_are_timed_once(colours: Path, tmp_path: Path) -> None:
    """Each network in float32 and as it is served."""
    models = [pooled_colours(tmp_path / f"{name}.pt2") for name in "ab"]
    how = ["--served", "--precision", "fp32", "--latency", "--backend", "eager"]
    rows = evaluated(tmp_path, *models, "--data", f"classes:{colours}", *how)
    assert [(row["model"], row["served"] is not None) for row in rows] == [
        (str(model), served) for model in models for served in (False, True)
    ]
    for own, served in (rows[:2], rows[2:]):
        assert served["scores"] == own["scores"] == {f"classes:{colours}": {"images": 12, "top1": 1.0, "top5": 1.0}}
        assert served["latency_ms"] == own["latency_ms"]
        assert [entry["instances"] for entry in own["latency_ms"]] == [1, 2]


def test_an_impossible_precision_is_refused_before_scoring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["--data", f"road:{tmp_path / 'road'}", "--device", "cpu", "--served", "--precision", "fp16"]
    assert main(["evaluate", "builtin:object", *run]) == 1
    assert "precision is 'fp16'; allowed with backend" in capsys.readouterr().err
    assert not (tmp_path / "road").exists()  # nothing was rendered


@pytest.mark.parametrize(
    "command",
    [
        ["retrain", "no.safetensors", "--output", "out.safetensors", "--data", "road"],
        ["retrain", "builtin:object", "--output", "out.safetensors", "--data", "coco:no"],
        ["retrain", "builtin:object", "--output", "o.safetensors", "--data", "road", "--teacher", "no.safetensors"],
        ["evaluate", "builtin:object", "no.onnx", "--data", "road"],
        ["evaluate", "torchvision:vgg11", "--weights", "no.pth", "--data", "road"],
        ["decompose", "no.onnx", "--output", "out.pt2"],
        ["decompose", "builtin:object", "--output", "out.safetensors", "--data", "no"],
    ],
)
def test_missing_files_are_named_before_anything_is_loaded(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("multi_dnn_ros.models.sources.load_network", None)
    assert main(command) == 1
    assert "no" in capsys.readouterr().err.partition("error: ")[2]


@pytest.fixture
def detections_scored_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Replace the `score` of the kind of the DNNs below, as if it were of another package."""

    def set_score(score: Any) -> None:
        kind = replace(RESULT_KINDS.get("detections"), score=score)
        monkeypatch.setattr(RESULT_KINDS, "get", lambda name: kind)

    return set_score


def raising(pairs: Any, labels: Any) -> Any:
    raise IndexError(f"{len(list(pairs))} images\nin all")


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda pairs, labels: {"blur": float("nan")}, "returned {'blur': nan}; allowed: finite numbers by name"),
        (lambda pairs, labels: {"blur": "much"}, "returned {'blur': 'much'}; allowed: finite numbers by name"),
        (lambda pairs, labels: None, "`score` of result kind 'detections' raised AttributeError"),
        (raising, "`score` of result kind 'detections' raised IndexError: 2 images"),
        (lambda pairs, labels: {"count": 1.0}, "the scores count lack map50"),
    ],
)
def test_scores_of_another_package(
    score: Any, message: str, detections_scored_by: Callable[[Any], None], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """They are shown under their names; a score that is no number, or raises, ends the command with one line."""
    detections_scored_by(score)
    run = ["builtin:pedestrian_small", "--data", f"road:{tmp_path / 'road'}", "--scenes", "4", "--device", "cpu"]
    if "map50" in message:
        (row,) = evaluated(tmp_path, *run, "--limit", "2")
        assert next(iter(row["scores"].values())) == {"images": 2, "count": 1.0}
        assert main(["retrain", *run, "--output", str(tmp_path / "model.safetensors")]) == 1
    else:
        assert main(["evaluate", *run, "--limit", "2"]) == 1
    assert message in capsys.readouterr().err
