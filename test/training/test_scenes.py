"""The scene generator: determinism, and truth that is exactly what was drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.training import scenes
from multi_dnn_ros.training.rendering import pedestrians, vehicles
from multi_dnn_ros.training.rendering.camera import Camera, RoadPath
from multi_dnn_ros.training.rendering.canvas import Canvas
from multi_dnn_ros.training.rendering.light import Light
from multi_dnn_ros.training.rendering.road import LaneLine, RoadSection, Strip, draw_ground, draw_markings, lane_truth
from multi_dnn_ros.training.scenes import Scene, SceneGenerator

WHITE = (250.0, 250.0, 250.0)
BLACK = (20.0, 20.0, 20.0)


def camera(width: int = 640, height: int = 480) -> Camera:
    return Camera(width, height, focal=0.8 * width, mount_m=1.4, pitch=0.02, yaw=0.0, roll=0.0)


def noon() -> Light:
    """No shade, no fog, no headlights: colours are unchanged."""
    ambient, sun = np.ones(3), np.array([0.0, 1.0, 0.0])
    return Light(ambient, sun, contrast=0.0, fog=np.zeros(3), visibility_m=1e9, beam=0.0, shadow=0.0)


def path(curvature: float = 0.0, lateral: float = 0.0) -> RoadPath:
    s = np.linspace(-16.0, 230.0, 300)
    return RoadPath(s, np.full_like(s, curvature), 0.0, lateral)


def line(offset: float, dash: float = 0.0) -> LaneLine:
    return LaneLine(offset, WHITE, 0.2, dash, dash * 2, double=False, wear=0.0)


def section(*lines: LaneLine) -> RoadSection:
    road = Strip(-30.0, 30.0, BLACK, 0.0)
    return RoadSection((road,), lines, (1.75,), (), -30.0, 30.0, BLACK, 0.0, 0.0)


def same(a: Scene, b: Scene) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("image", "lane_mask", "boxes", "class_ids", "ignored")
    )


def test_a_scene_depends_on_seed_and_index_only() -> None:
    assert same(SceneGenerator(320, 240, 5).scene(7), SceneGenerator(320, 240, 5).scene(7))
    assert not same(SceneGenerator(320, 240, 5).scene(7), SceneGenerator(320, 240, 5).scene(8))
    assert not same(SceneGenerator(320, 240, 5).scene(7), SceneGenerator(320, 240, 6).scene(7))


def test_any_frame_of_a_drive_is_the_same_alone_and_in_order() -> None:
    drive = SceneGenerator(320, 240, 5).drive(8, 10.0, stretch_s=0.4)  # the road changes in the middle
    in_order = [drive.frame(k) for k in range(8)]
    for k in (6, 1, 3):
        assert same(in_order[k], SceneGenerator(320, 240, 5).drive(8, 10.0, stretch_s=0.4).frame(k))
    assert in_order[3].conditions != in_order[4].conditions or not same(in_order[3], in_order[4])


def test_a_drive_is_coherent() -> None:
    """Objects move little from one frame to the next: most boxes have a box of the same class nearby."""
    drive = SceneGenerator(640, 480, 3).drive(20, 20.0, stretch_s=0.0)
    pairs = kept = 0
    for k in range(0, 20, 4):
        a, b = drive.frame(k), drive.frame(k + 1)
        for box, class_id in zip(a.boxes, a.class_ids, strict=True):
            partners = b.boxes[b.class_ids == class_id]
            pairs += 1
            kept += bool(len(partners)) and float(np.abs(partners - box).max(axis=1).min()) < 40
    assert pairs > 10
    assert kept / pairs > 0.8


@settings(max_examples=12)
@given(st.integers(64, 700), st.integers(64, 500), st.integers(0, 2**31), st.integers(0, 2**31))
def test_scenes_of_any_size_and_seed_are_valid(width: int, height: int, seed: int, index: int) -> None:
    scene = SceneGenerator(width, height, seed).scene(index)
    assert scene.image.shape == (height, width, 3)
    assert scene.image.dtype == np.uint8
    assert scene.image.flags.c_contiguous
    assert scene.lane_mask.shape == (height, width)
    numbers = np.unique(scene.lane_mask)
    assert numbers.tolist() in (list(range(len(numbers))), list(range(1, len(numbers) + 1)))
    for boxes in (scene.boxes, scene.ignored):
        assert boxes.dtype == np.float32
        assert boxes.shape[1:] == (4,)
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2] <= width).all()
        assert (boxes[:, 3] <= height).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert len(scene.class_ids) == len(scene.boxes)
    for box, class_id in zip(scene.boxes, scene.class_ids, strict=True):
        assert box[3] - box[1] >= scenes.MIN_HEIGHT[class_id] * height


def test_all_classes_lines_and_conditions_occur() -> None:
    generator = SceneGenerator(160, 120, 11)  # all occur soon
    drawn: list[Scene] = []

    def occur() -> bool:
        return (
            {int(c) for scene in drawn for c in scene.class_ids} == {0, 1, 2}
            and {scene.conditions.time for scene in drawn} == {"day", "dusk", "night"}
            and len({scene.conditions.weather for scene in drawn}) == 5
            and len({scene.conditions.style for scene in drawn}) == 4
            and {2, 3, 4} <= {int(scene.lane_mask.max()) for scene in drawn}
        )

    while not occur() and len(drawn) < 60:
        drawn.append(generator.scene(len(drawn)))
    assert occur()


@pytest.mark.parametrize("size", [(63, 100), (100, 5000)])
def test_a_size_out_of_range_is_named(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"{size[0]}x{size[1]}"):
        SceneGenerator(*size, 0)


def test_wrong_indices_are_named() -> None:
    generator = SceneGenerator(64, 64, 0)
    with pytest.raises(ValueError, match="index -1"):
        generator.scene(-1)
    with pytest.raises(ValueError, match="seed -3"):
        SceneGenerator(64, 64, -3)
    with pytest.raises(ValueError, match="0 frames at 10"):
        generator.drive(0, 10.0)
    with pytest.raises(IndexError, match="frame 5 of a drive of 5"):
        generator.drive(5, 10.0).frame(5)


@pytest.mark.parametrize("kind", ["car", "truck", "oncoming truck", "pedestrian"])
@pytest.mark.parametrize(("x", "z"), [(-3.0, 12.0), (2.0, 25.0), (0.5, 60.0), (4.0, 6.5)])
def test_a_box_is_tight_around_the_pixels_of_its_object(kind: str, x: float, z: float) -> None:
    rng = np.random.default_rng(4)
    if kind == "pedestrian":
        mesh, heading = pedestrians.Person.random(rng).figure(1.0, 1.0, 1.0), 0.0
    elif kind == "car":
        mesh, heading = vehicles.car(rng, lamps_on=False), 0.2
    else:
        mesh = vehicles.truck(rng, lamps_on=False, oncoming=kind != "truck")
        heading = 0.0 if kind == "truck" else np.pi
    canvas = Canvas.blank(camera(), noon())
    canvas.image[:] = (255, 0, 255)  # a colour that nothing has
    silhouette = canvas.draw(mesh, np.array([x, 0.0, z]), heading, number=7)
    assert silhouette is not None
    # Anti-aliasing leaves a faint rim; a pixel belongs to the object when it covers about half of it.
    changed = np.abs(canvas.image.astype(int) - (255, 0, 255)).max(axis=2) > 100
    rows, columns = np.nonzero(changed)
    seen = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
    assert np.abs(seen - silhouette.box).max() <= 1
    assert silhouette.pixels == np.count_nonzero(canvas.owner == 7)


def test_an_object_in_front_takes_the_pixels_of_the_one_behind() -> None:
    rng = np.random.default_rng(0)
    canvas = Canvas.blank(camera(), noon())
    far = canvas.draw(vehicles.car(rng, lamps_on=False), np.array([0.0, 0.0, 30.0]), 0.0, number=1)
    near = canvas.draw(vehicles.truck(rng, lamps_on=False), np.array([0.0, 0.0, 16.0]), 0.0, number=2)
    assert far is not None
    assert near is not None
    assert np.count_nonzero(canvas.owner == 1) < scenes.MIN_VISIBLE * far.pixels
    assert np.count_nonzero(canvas.owner == 2) == near.pixels


def test_an_object_behind_the_camera_is_not_drawn() -> None:
    canvas = Canvas.blank(camera(), noon())
    assert (
        canvas.draw(vehicles.car(np.random.default_rng(0), False), np.array([0.0, 0.0, -20.0]), 0.0, number=1) is None
    )
    assert not canvas.owner.any()


@pytest.mark.parametrize("curvature", [0.0, 1 / 150, -1 / 90])
def test_the_lane_truth_lies_on_the_paint(curvature: float) -> None:
    canvas, road = Canvas.blank(camera(), noon()), path(curvature, lateral=1.7)
    cross = section(line(0.0), line(3.5))
    draw_ground(canvas, road, cross, 0.0)
    draw_markings(canvas, road, cross, 0.0)
    mask = lane_truth(canvas, road, cross)
    paint = canvas.image[..., 0] > 60
    for number in (1, 2):
        rows = [v for v in range(300, 470) if (mask[v] == number).any()]
        assert len(rows) > 100
        for v in rows[::10]:
            middle = float(np.mean(np.nonzero(mask[v] == number)[0]))
            painted = np.nonzero(paint[v])[0]
            assert np.abs(painted - middle).min() <= 1.5


def test_a_dashed_line_is_one_line_and_lines_count_from_the_left() -> None:
    canvas, road = Canvas.blank(camera(), noon()), path(lateral=1.7)
    cross = section(line(-3.5), line(0.0, dash=3.0), line(3.5))
    draw_ground(canvas, road, cross, 0.0)
    draw_markings(canvas, road, cross, 0.0)
    mask = lane_truth(canvas, road, cross)
    assert set(np.unique(mask)) == {0, 1, 2, 3}
    rows = np.nonzero((mask == 2).any(axis=1))[0]
    assert len(rows) == rows[-1] - rows[0] + 1  # no gap between the dashes
    unpainted = [v for v in rows if canvas.image[v][mask[v] == 2].max() < 60]
    assert len(unpainted) > 30  # and there are gaps in the paint
    middles = [np.nonzero(mask == number)[1].mean() for number in (1, 2, 3)]
    assert middles == sorted(middles)


def test_objects_cut_the_lane_truth() -> None:
    canvas, road = Canvas.blank(camera(), noon()), path(lateral=1.7)
    cross = section(line(0.0))
    whole = lane_truth(canvas, road, cross)
    canvas.draw(vehicles.truck(np.random.default_rng(0), False), np.array([-1.7, 0.0, 15.0]), 0.0, number=1)
    cut = lane_truth(canvas, road, cross)
    assert 0 < np.count_nonzero(cut) < np.count_nonzero(whole)
    assert not cut[canvas.owner > 0].any()


def test_fog_shortens_the_lane_truth() -> None:
    clear = noon()
    foggy = Light(clear.ambient, clear.sun, 0.0, clear.fog, visibility_m=10.0, beam=0.0, shadow=0.0)
    tops = []
    for light in (clear, foggy):
        mask = lane_truth(Canvas.blank(camera(), light), path(lateral=1.7), section(line(0.0)))
        tops.append(int(np.nonzero(mask.any(axis=1))[0][0]))
    assert tops[1] > tops[0] + 10
