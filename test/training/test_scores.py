"""Scores against cases counted by hand, and `multi-dnn evaluate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.training.metrics import LaneScore, Truth, score_detections
from multi_dnn_ros.vision.result_kind import RESULT_KINDS

pytestmark = pytest.mark.usefixtures("one_thread")
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
        ([found((A, 0, 0.9))], [truth((A, 0))], {"map50": 1.0, "map50_car": 1.0, "map": 1.0}),
        ([found((A, 0, 0.9))], [truth((A, 0), (B, 0))], {"map50": 51 / 101}),  # recall is read at 0, 0.01, ..., 1
        ([found((A, 0, 0.5), (B, 0, 0.9))], [truth((A, 0))], {"map50": 0.5}),  # a false one with a higher score
        ([found(((0, 0, 10, 8), 0, 0.9))], [truth((A, 0))], {"map50": 1.0, "map": 0.7}),  # IoU 0.8: 7 of 10 thresholds
        (
            [found((A, 0, 0.9), (B, 0, 0.8))],
            [truth((A, 0), (B, 1))],
            {"map50_car": 1.0, "map50_truck": 0, "map50": 0.5},
        ),
        ([found(), found((A, 0, 0.9))], [truth((A, 0)), truth()], {"map50": 0.0}),  # images are kept apart
        # A crowd of cars excuses false cars, but not false trucks.
        (
            [found((A, 0, 0.5), (B, 0, 0.9), (C, 1, 0.5), (B, 1, 0.9))],
            [truth((A, 0), (C, 1), ((48, 48, 62, 62), 0), crowds=[False, False, True])],
            {"map50_car": 1.0, "map50_truck": 0.5},
        ),
    ],
)
def test_average_precision(predicted: list[Any], true: list[Truth], expected: dict[str, float]) -> None:
    scores = score_detections(zip(predicted, true, strict=True), ("car", "truck"))
    assert {name: scores[name] for name in expected} == pytest.approx(expected)


# --- lanes ------------------------------------------------------------------------------------------------------------


def upright(*columns: int, width: int = 320) -> np.ndarray:
    mask = np.zeros((192, width), np.uint8)
    mask[:, list(columns)] = 1
    return mask


def lane_scores(*pairs: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    score = LaneScore()
    for predicted, true in pairs:
        score.add(predicted, true)
    return score.scores()


NOTHING, WIDE = upright(), np.repeat(np.repeat(upright(100), 3, axis=0), 3, axis=1)


@pytest.mark.parametrize(
    ("predicted", "true", "f1"),
    [
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
    assert lane_scores((predicted, true))["f1"] == f1


def test_pixels_are_summed_over_images() -> None:
    first = upright(100, 200), upright(20, 100, 300)  # a line too many, and two lines missed
    assert lane_scores(first) == pytest.approx({"f1": 0.4, "precision": 0.5, "recall": 1 / 3})
    both = lane_scores(first, (NOTHING, upright(100)))
    assert (both["precision"], both["recall"]) == (0.5, 0.25)


# --- multi-dnn evaluate -----------------------------------------------------------------------------------------------


def evaluated(tmp_path: Path, *command: str | Path) -> list[dict[str, Any]]:
    """The rows of the report."""
    assert main(["evaluate", *map(str, command), "--device", "cpu", "--report", str(tmp_path / "report")]) == 0
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
    (row,) = evaluated(tmp_path, model, "--data", f"classes:{colours}", "--limit", "4")
    assert row["scores"][f"classes:{colours}"] == {"images": 4, "top1": 0.5, "top5": 1.0}


@pytest.mark.parametrize("model", ["builtin:object", "builtin:lane"])
def test_thresholds_trade_recall_for_precision(model: str, tmp_path: Path) -> None:
    road = f"road:{tmp_path / 'road'}"
    (row,) = evaluated(tmp_path, model, "--data", road, "--scenes", "4", "--limit", "4", "--thresholds")
    points = row["operating_points"][road]
    assert [point["threshold"] for point in points] == pytest.approx([0.05 * k for k in range(1, 20)])
    assert points[0]["recall"] > 0.8 > points[-1]["recall"]
    assert points[0]["precision"] < points[10]["precision"]
    assert (points[0]["false_per_image"] is None) is (model == "builtin:lane")


@pytest.mark.parametrize(("role", "score", "floor"), [
    ("lane", "f1", 0.93), ("object", "map50", 0.85), ("pedestrian", "map50", 0.8),
])  # fmt: skip
def test_the_package_s_networks_on_unseen_scenes(role: str, score: str, floor: float, tmp_path: Path) -> None:
    """And the ones with fewer MACs; all are small enough for three on two cores of a CPU."""
    data = ["--data", f"road:{tmp_path / 'road'}", "--scenes", str(12 * 20), "--limit", "20"]
    original, small = evaluated(tmp_path, f"builtin:{role}", f"builtin:{role}_small", *data)
    assert small["macs"] <= 0.6 * original["macs"] < 0.6e9
    for row in (original, small):
        (scores,) = row["scores"].values()
        assert scores[score] >= floor


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


def test_scores_of_a_result_kind_of_another_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are shown under their names, but do not choose an epoch."""
    kind = replace(RESULT_KINDS.get("detections"), score=lambda pairs, labels: {"count": len(list(pairs))})
    monkeypatch.setattr(RESULT_KINDS, "get", lambda name: kind)
    run = ["builtin:pedestrian_small", "--data", f"road:{tmp_path / 'road'}", "--scenes", "4"]
    (row,) = evaluated(tmp_path, *run, "--limit", "2")
    assert next(iter(row["scores"].values())) == {"images": 2, "count": 2}
    assert main(["retrain", *run, "--device", "cpu", "--output", str(tmp_path / "model.safetensors")]) == 1
    assert "the scores count lack map50" in capsys.readouterr().err
