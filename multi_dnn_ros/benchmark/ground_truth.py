"""Errors of lane points in metres on generated roads, whose camera and lines are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sensor_msgs.msg import CameraInfo
from std_msgs.msg import Header
from tqdm import tqdm

from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.ros.camera_info import checked_calibration
from multi_dnn_ros.ros.result_messages import GROUND_FIELDS, lane_ground_message
from multi_dnn_ros.training.rendering.camera import Camera
from multi_dnn_ros.training.scenes import Scene, World
from multi_dnn_ros.vision.ground import CameraPose, GroundView
from multi_dnn_ros.vision.results import Lane, Lanes

Points = npt.NDArray[np.float64]
Lines = dict[int, Points]

#: Forward distances at which the sideways error of each line is measured, m.
DISTANCES_M = (5, 10, 20, 30, 40)
#: Maximum median error at these distances, m (issue 26).
TARGETS_M = {10: 0.1, 30: 0.5}
#: A found line belongs to the nearest true line, unless their median distance is larger than this, m.
_MAX_MATCH_M = 1.2
#: A true line is seen where the scene's lane mask has a line within this many columns.
_SEEN_COLUMNS = 3


@dataclass(frozen=True)
class Condition:
    """What is measured. flat: whether the roads have no hills; otherwise all have them. nodding: whether the projection
    gets the camera's mean pose, although the camera pitches and sways. lanes: returns the Lanes of a scene.
    """

    name: str
    flat: bool
    nodding: bool
    lanes: Callable[[Scene], Lanes]


def camera_info(camera: Camera) -> CameraInfo:
    """The calibration of a generated camera, which has no distortion."""
    middle = (camera.width / 2 - 0.5, camera.height / 2 - 0.5)
    k = [camera.focal, 0.0, middle[0], 0.0, camera.focal, middle[1], 0.0, 0.0, 1.0]
    return CameraInfo(width=camera.width, height=camera.height, distortion_model="plumb_bob", d=[0.0] * 5, k=k)


def view_of(camera: Camera) -> GroundView:
    """The view of a generated camera; the vehicle's origin is on the ground below it."""
    calibration = checked_calibration(camera_info(camera), rectified=False)
    pose = CameraPose.mounted((0.0, 0.0, camera.mount_m), *camera.rpy)
    return GroundView(calibration.lens, calibration.area((camera.width, camera.height)), pose, range_m=60.0)


def true_pixels(scene: Scene) -> Lanes:
    """The true lines as Lanes: the exact pixel positions of those points that are inside the image."""
    view = view_of(scene.camera)
    found: list[Lane] = []
    for line in scene.lines:
        pixels = view.pixels(line)
        inside = _inside(pixels, scene)
        if inside.any():
            points = pixels[inside].astype(np.float32)
            found.append(Lane(len(found) + 1, points, np.zeros(3), 1.0))
    return Lanes(scene.lane_mask, tuple(found))


def whole_pixels(scene: Scene) -> Lanes:
    """As :func:`true_pixels`, rounded to whole pixels."""
    exact = true_pixels(scene)
    lanes = tuple(Lane(lane.number, np.round(lane.points), lane.curve, lane.score) for lane in exact.lanes)
    return Lanes(exact.numbers, lanes)


def measure_ground(
    conditions: tuple[Condition, ...],
    count: int,
    size: tuple[int, int],
    seed: int,
    keep: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
) -> list[dict[str, Any]]:
    """Sideways errors and the share of the seen lines that were found, for each condition and distance.

    keep: called after each condition with the rows so far.
    """
    rows: list[dict[str, Any]] = []
    for condition in conditions:
        errors: dict[int, list[float]] = {distance: [] for distance in DISTANCES_M}
        scenes = 0
        seen, found = dict.fromkeys(DISTANCES_M, 0), dict.fromkeys(DISTANCES_M, 0)
        for index in tqdm(range(count), condition.name, leave=False, disable=None):
            world, scene = scene_of(index, size, seed, flat=condition.flat)
            if not condition.flat and world.hill == 0.0:  # city streets have no hills
                continue
            scenes += 1
            lines = metres_of(condition.lanes(scene), view_of(world.camera if condition.nodding else scene.camera))
            matches = _matched(lines, scene.lines)
            for distance in DISTANCES_M:
                visible = _visible(scene, distance)
                seen[distance] += len(visible)
                for line in visible & matches.keys():
                    y = _y_at(matches[line], distance)
                    if y is not None:
                        found[distance] += 1
                        errors[distance].append(abs(y - _true_y_at(scene.lines[line], distance)))
        rows.append(
            {
                "condition": condition.name,
                "scenes": scenes,
                "error_m": {str(distance): distribution(values) for distance, values in errors.items() if values},
                "found": {
                    str(distance): round(found[distance] / max(seen[distance], 1), 3) for distance in DISTANCES_M
                },
                "met": {
                    str(distance): bool(errors[distance]) and float(np.median(errors[distance])) <= target_m
                    for distance, target_m in TARGETS_M.items()
                },
            }
        )
        keep(rows)
    return rows


def metres_of(lanes: Lanes, view: GroundView) -> Lines:
    """x, y, z of each line, by its number, from the message that the node would publish."""
    message = lane_ground_message(lanes, Header(), view.project)
    table = np.frombuffer(message.data, "<f4").reshape(-1, len(GROUND_FIELDS)).astype(np.float64)
    number = table[:, GROUND_FIELDS.index("lane")]
    return {int(lane): table[number == lane, :3] for lane in np.unique(number)}


def scene_of(index: int, size: tuple[int, int], seed: int, *, flat: bool) -> tuple[World, Scene]:
    """A road, and a scene on it, which both follow from `index` and `seed`."""
    world = World(*size, (seed, 0, index), flat=flat)
    return world, world.scene(float(np.random.default_rng((seed, 2, index)).uniform(0.0, 60.0)), index)


def _matched(lines: Lines, truth: tuple[Points, ...]) -> Lines:
    """The found lines by the index of their true line. If several belong to one, that with the most points counts."""
    matched: Lines = {}
    for line in lines.values():
        ordered = line[np.argsort(line[:, 0])]
        gaps = [_gap(ordered, true) for true in truth]
        if not gaps or min(gaps) > _MAX_MATCH_M:
            continue
        index = int(np.argmin(gaps))
        if index not in matched or len(matched[index]) < len(ordered):
            matched[index] = ordered
    return matched


def _gap(line: Points, truth: Points) -> float:
    """Median sideways distance between a found and a true line."""
    order = np.argsort(truth[:, 0])
    across = line[:, 1] - np.interp(line[:, 0], truth[order, 0], truth[order, 1])
    return float(np.median(np.abs(across)))


def _y_at(line: Points, distance: float) -> float | None:
    """y at x = distance; None unless the line begins before this distance and ends beyond it."""
    if len(line) < 2 or not line[0, 0] <= distance <= line[-1, 0]:
        return None
    return float(np.interp(distance, line[:, 0], line[:, 1]))


def _true_y_at(line: Points, distance: float) -> float:
    order = np.argsort(line[:, 0])
    return float(np.interp(distance, line[order, 0], line[order, 1]))


def _visible(scene: Scene, distance: float) -> set[int]:
    """Indices of the true lines that are seen at this distance: not hidden, inside the image."""
    view = view_of(scene.camera)
    visible = set()
    for index, line in enumerate(scene.lines):
        order = np.argsort(line[:, 0])
        point = [distance, *(np.interp(distance, line[order, 0], line[order, axis]) for axis in (1, 2))]
        pixel = view.pixels(np.array([point]))
        if line[:, 0].max() > distance and _inside(pixel, scene)[0]:
            u, v = np.round(pixel[0]).astype(int)
            around = scene.lane_mask[max(v - 1, 0) : v + 2, max(u - _SEEN_COLUMNS, 0) : u + _SEEN_COLUMNS + 1]
            if around.any():
                visible.add(index)
    return visible


def _inside(pixels: Points, scene: Scene) -> npt.NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        inside = (pixels >= 0.0).all(axis=1) & (pixels <= (scene.camera.width - 1, scene.camera.height - 1)).all(axis=1)
    return np.asarray(inside)
