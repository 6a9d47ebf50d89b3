"""The scene generator: determinism, and truth that is exactly what was drawn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.training import scenes
from multi_dnn_ros.training.rendering import objects
from multi_dnn_ros.training.rendering.canvas import Canvas, Light
from multi_dnn_ros.training.rendering.geometry import Camera, Mesh, RoadPath
from multi_dnn_ros.training.rendering.road import LaneLine, RoadSection, Strip, draw_ground, draw_markings, lane_truth
from multi_dnn_ros.training.scenes import Scene, SceneGenerator


def same(a: Scene, b: Scene) -> bool:
    names = ("image", "lane_mask", "boxes", "class_ids", "ignored")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def test_a_scene_depends_on_seed_and_index_only() -> None:
    scene = SceneGenerator(320, 240, 5).scene(7)
    assert same(scene, SceneGenerator(320, 240, 5).scene(7))
    assert not same(scene, SceneGenerator(320, 240, 5).scene(8))
    assert not same(scene, SceneGenerator(320, 240, 6).scene(7))


def test_any_frame_of_a_drive_is_the_same_alone_and_in_order() -> None:
    drive = SceneGenerator(320, 240, 5).drive(8, 10.0, stretch_s=0.4)  # the road changes in the middle
    in_order = [drive.frame(k) for k in range(8)]
    for k in (6, 1, 3):
        assert same(in_order[k], SceneGenerator(320, 240, 5).drive(8, 10.0, stretch_s=0.4).frame(k))
    assert in_order[3].conditions != in_order[4].conditions


@settings(max_examples=12)
@given(st.integers(64, 700), st.integers(64, 500), st.integers(0, 2**31), st.integers(0, 2**31))
def test_scenes_of_any_size_and_seed_are_valid(width: int, height: int, seed: int, index: int) -> None:
    scene = SceneGenerator(width, height, seed).scene(index)
    assert (scene.image.shape, scene.image.dtype) == ((height, width, 3), np.uint8)
    assert scene.lane_mask.shape == (height, width)
    numbers = np.unique(scene.lane_mask)
    assert numbers.tolist() in (list(range(len(numbers))), list(range(1, len(numbers) + 1)))
    for boxes in (scene.boxes, scene.ignored):
        assert (boxes.dtype, boxes.shape[1:]) == (np.float32, (4,))
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:] <= (width, height)).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()
    for box, class_id in zip(scene.boxes, scene.class_ids, strict=True):
        assert box[3] - box[1] >= scenes.MIN_HEIGHT[class_id] * height


def test_all_classes_lines_and_conditions_occur() -> None:
    drawn = [SceneGenerator(160, 120, 11).scene(k) for k in range(40)]
    assert {int(c) for scene in drawn for c in scene.class_ids} == {0, 1, 2}
    assert [len({scene.conditions[k] for scene in drawn}) for k in range(3)] == [4, 3, 5]  # style, time, weather
    assert {2, 3, 4} <= {int(scene.lane_mask.max()) for scene in drawn}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SceneGenerator(63, 100, 0), "63x100"),
        (lambda: SceneGenerator(64, 64, 0).scene(-1), "index -1"),
        (lambda: SceneGenerator(64, 64, 0).drive(0, 10.0), "0 frames at 10"),
        (lambda: SceneGenerator(64, 64, 0).drive(5, 10.0).frame(5), "frame 5 of a drive of 5"),
    ],
)
def test_wrong_numbers_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, IndexError), match=message):
        make()


# --- what is drawn and what is true -----------------------------------------------------------------------------------


def canvas(visibility_m: float = 1e9) -> Canvas:
    """No shade, no headlights: colours are unchanged."""
    light = Light(np.ones(3), np.array([0.0, 1.0, 0.0]), 0.0, np.zeros(3), visibility_m, beam=0.0)
    return Canvas(Camera(640, 480, focal=512.0, mount_m=1.4, pitch=0.02, yaw=0.0, roll=0.0), light)


def path(curvature: float = 0.0) -> RoadPath:
    s = np.linspace(-16.0, 230.0, 300)
    return RoadPath(s, np.full_like(s, curvature), 0.0, lateral_m=1.7)


def section(*offsets: float, dash: float = 0.0) -> RoadSection:
    lines = tuple(LaneLine(offset, (250.0, 250.0, 250.0), 0.2, dash, dash * 2, False, 0.0) for offset in offsets)
    black = (20.0, 20.0, 20.0)
    return RoadSection((Strip(-30.0, 30.0, black, 0.0),), lines, (1.75,), (), black, 0.0, 0.0)


def mesh_of(kind: str) -> tuple[Mesh, float]:
    rng = np.random.default_rng(4)
    if kind == "pedestrian":
        return objects.person(rng)(1.0, 1.0, 1.0), 0.0
    if kind == "car":
        return objects.car(rng, lamps_on=False), 0.2
    return objects.truck(rng, False, oncoming=kind != "truck"), 0.0 if kind == "truck" else np.pi


@pytest.mark.parametrize("kind", ["car", "truck", "oncoming truck", "pedestrian"])
@pytest.mark.parametrize(("x", "z"), [(-3.0, 12.0), (0.5, 60.0), (4.0, 9.0)])
def test_a_box_is_tight_around_the_pixels_of_its_object(kind: str, x: float, z: float) -> None:
    drawn = canvas()
    drawn.image[:] = (255, 0, 255)  # a colour that nothing has
    mesh, heading = mesh_of(kind)
    silhouette = drawn.draw(mesh, np.array([x, 0.0, z]), heading, number=7)
    assert silhouette is not None
    # Anti-aliasing leaves a faint rim; a pixel belongs to the object when it covers about half of it.
    changed = np.abs(drawn.image.astype(int) - (255, 0, 255)).max(axis=2) > 100
    rows, columns = np.nonzero(changed)
    seen = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    assert np.abs(seen - silhouette.box).max() <= 1
    assert silhouette.pixels == np.count_nonzero(drawn.owner == 7)


@pytest.mark.parametrize("curvature", [0.0, 1 / 150, -1 / 90])
@pytest.mark.parametrize("dash", [0.0, 3.0])
def test_the_lane_truth_lies_on_the_paint_without_gaps(curvature: float, dash: float) -> None:
    """Lines count from the left, and a dashed line is one line."""
    drawn, road, cross = canvas(), path(curvature), section(0.0, 3.5, dash=dash)
    draw_ground(drawn, road, cross, 0.0)
    draw_markings(drawn, road, cross, 0.0)
    mask = lane_truth(drawn, road, cross)
    assert set(np.unique(mask)) == {0, 1, 2}
    paint = drawn.image[..., 0] > 60
    for number in (1, 2):
        rows = np.nonzero((mask == number).any(axis=1))[0]
        assert len(rows) == rows[-1] - rows[0] + 1 > 100
        off = [
            np.abs(np.nonzero(paint[v])[0] - np.nonzero(mask[v] == number)[0].mean()).min(initial=99) > 1.5
            for v in rows[rows > 300]
        ]
        assert any(off) is bool(dash)  # in the gaps
        assert not all(off)
    assert np.nonzero(mask == 1)[1].mean() < np.nonzero(mask == 2)[1].mean()
