"""Lane points in metres: known errors are measured, and the truth of generated roads agrees with their images."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import pytest

import multi_dnn_ros.ros  # noqa: F401
from multi_dnn_ros.benchmark import ground_truth
from multi_dnn_ros.benchmark.ground_plot import plot_ground
from multi_dnn_ros.benchmark.ground_truth import (
    Condition,
    measure_ground,
    metres_of,
    scene_of,
    true_pixels,
    view_of,
    whole_pixels,
)
from multi_dnn_ros.training.scenes import Scene
from multi_dnn_ros.vision.results import Lane, Lanes

SIZE, SEED = (320, 240), 5


def shifted(scene: Scene) -> Lanes:
    """The true lines, 0.2 m to the left."""
    moved = tuple(line + np.array([0.0, 0.2, 0.0]) for line in scene.lines)
    return true_pixels(replace(scene, lines=moved))


def none(scene: Scene) -> Lanes:
    return Lanes(scene.lane_mask, ())


def one_number(scene: Scene) -> Lanes:
    """All lines as one, as from a DNN that cannot distinguish them."""
    lanes = true_pixels(scene).lanes
    points = np.concatenate([lane.points for lane in lanes]) if lanes else np.zeros((0, 2), np.float32)
    return Lanes(scene.lane_mask, (Lane(1, points, np.zeros(3), 1.0),))


def test_a_known_error_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    # Most conditions measure the same scenes, and generating these takes most of the time.
    monkeypatch.setattr(ground_truth, "scene_of", cache(scene_of))
    conditions = (
        Condition("exact", True, False, true_pixels),
        Condition("rounded", True, False, whole_pixels),
        Condition("shifted", True, False, shifted),
        Condition("none", True, False, none),
        Condition("one", True, False, one_number),
        Condition("moving", True, True, true_pixels),
        Condition("hills", False, False, true_pixels),
    )
    kept: list[int] = []
    measured = measure_ground(conditions, 6, SIZE, SEED, lambda rows: kept.append(len(rows)))
    assert kept == [*range(1, len(conditions) + 1)]  # after each condition
    rows = {row["condition"]: row for row in measured}
    exact, far = rows["exact"]["error_m"], rows["shifted"]["error_m"]
    assert exact["10"]["max"] < 1e-3
    assert exact["30"]["max"] < 1e-2
    assert rows["exact"]["found"]["10"] > 0.9
    assert rows["exact"]["met"] == {"10": True, "30": True}
    assert far["10"]["p50"] == pytest.approx(0.2, abs=0.01)
    assert far["30"]["p50"] == pytest.approx(0.2, abs=0.02)
    assert rows["shifted"]["met"] == {"10": False, "30": True}
    assert rows["none"]["found"] == dict.fromkeys(rows["none"]["found"], 0.0)
    assert rows["none"]["met"] == {"10": False, "30": False}  # without a found line no target is met
    assert rows["one"]["found"]["10"] < 0.7
    for disturbed in ("rounded", "moving", "hills"):
        assert rows[disturbed]["error_m"]["30"]["p50"] > 10 * exact["30"]["p50"], disturbed
    assert rows["hills"]["scenes"] < 6  # city streets have no hills


@pytest.mark.parametrize("index", range(4))
def test_the_lines_in_metres_are_those_of_the_image(index: int) -> None:
    """Each marked pixel of the lane mask is near a line that the camera of the scene projects."""
    _, scene = scene_of(index, SIZE, SEED, flat=False)
    drawn = np.full(scene.lane_mask.shape, 255, np.uint8)
    for line in scene.lines:
        pixels = view_of(scene.camera).pixels(line)
        pixels = pixels[np.isfinite(pixels).all(axis=1) & (np.abs(pixels) < 5000).all(axis=1)]
        cv2.polylines(drawn, [np.round(pixels).astype(np.int32).reshape(-1, 1, 2)], False, 0, 1)
    distance = cv2.distanceTransform(drawn, cv2.DIST_L2, 5)
    marked = distance[scene.lane_mask > 0]
    assert len(marked)
    assert marked.max() < 4.0  # half of the width with which the mask is drawn


def test_the_camera_of_a_scene_has_the_axes_of_rep_103() -> None:
    """The camera's own projection and the node's agree for points at any height."""
    _, scene = scene_of(0, SIZE, SEED, flat=True)
    camera = replace(scene.camera, roll=0.05, pitch=0.1, yaw=-0.2)
    points = np.random.default_rng(0).uniform((-8.0, 0.0, 5.0), (8.0, 4.0, 60.0), (50, 3))  # right, up, forward
    ours = view_of(camera).pixels(np.column_stack([points[:, 2], -points[:, 0], points[:, 1]]))
    assert ours == pytest.approx(camera.pixels(camera.optical(points)), abs=1e-8)


def test_the_plot_is_written(tmp_path: Path) -> None:
    _, scene = scene_of(0, SIZE, SEED, flat=True)
    lanes = true_pixels(scene)
    plot_ground(tmp_path / "ground.png", scene, lanes, metres_of(lanes, view_of(scene.camera)))
    assert cv2.imread(str(tmp_path / "ground.png")).shape[1] > 1000
