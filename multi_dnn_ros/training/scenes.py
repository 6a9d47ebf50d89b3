"""Generated road scenes with exact ground truth: training data, test data and a camera for the demo.

A scene is drawn randomly from a seed: a road with two to four lanes and curved, dashed, solid and double lines, cars
and trucks, people on the pavement and on the road, houses and trees, day, dusk or night, clear sky, clouds, rain, fog
or haze, and a camera with its defects. The same seed and index give the same pixels for the same versions of numpy and
OpenCV.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.rendering import surroundings, traffic
from multi_dnn_ros.training.rendering.canvas import SCENERY, VISIBLE_CONTRAST, Canvas, Silhouette
from multi_dnn_ros.training.rendering.geometry import Camera, RoadPath
from multi_dnn_ros.training.rendering.road import draw_ground, draw_markings, lane_truth
from multi_dnn_ros.training.rendering.surroundings import Conditions

LABELS = ("car", "truck", "pedestrian")
#: Smallest and largest width and height of scenes, in pixels.
MIN_SIDE, MAX_SIDE = 64, 4096

#: An object counts if at least this share of it is not occluded ...
MIN_VISIBLE = 0.5
#: ... at least this share of its extent lies inside the image, or it covers this share of the image ...
MIN_INSIDE, MIN_PIXELS = 0.3, 0.015
#: ... and its box has at least this height, as a share of the image's height (vehicles, pedestrians).
MIN_HEIGHT = (0.035, 0.035, 0.045)

_GRID = np.concatenate([np.arange(-16.0, 40.0, 1.5), np.geomspace(40.0, 232.0, 40)])


@dataclass(frozen=True)
class Scene:
    """One image and its ground truth.

    image: (H, W, 3) uint8 RGB. lane_mask: (H, W) uint8, lane line number from the left, 0 none. boxes: (N, 4) float32,
    x1, y1, x2, y2 in pixels, tight around each unoccluded object, clipped to the image. class_ids: (N,) int64, index
    into LABELS. ignored: (M, 4) float32, boxes of visible objects that do not count (too small, too occluded or too
    dim). conditions: style, time and weather.
    """

    image: npt.NDArray[np.uint8]
    lane_mask: npt.NDArray[np.uint8]
    boxes: npt.NDArray[np.float32]
    class_ids: npt.NDArray[np.int64]
    ignored: npt.NDArray[np.float32]
    conditions: Conditions


class World:
    """One stretch of road in one weather; `scene` renders it at any time."""

    def __init__(self, width: int, height: int, key: tuple[int, ...]) -> None:
        """key: nonnegative integers that determine everything."""
        self._key = key
        rng = np.random.default_rng(key)
        self.conditions = drawn = Conditions.random(rng)
        self._section = surroundings.road_section(rng, drawn)
        self._light, self._draw_backdrop = surroundings.light_and_sky(rng, drawn)
        self._expose = surroundings.sensor(rng, drawn, width)
        low, high = {"highway": (24, 31), "country": (15, 22), "suburb": (8, 13), "city": (7, 12)}[drawn.style]
        self._speed = float(rng.uniform(low, high))
        lane = int(rng.integers(len(self._section.forward)))
        self._lateral = self._section.forward[lane] + float(rng.normal(0.0, 0.22))
        bend = {"highway": 1 / 380, "country": 1 / 110, "suburb": 1 / 160, "city": 1 / 400}[drawn.style]
        waves = rng.uniform((-1.0, 90.0, 0.0), (1.0, 320.0, 2 * np.pi), (3, 3))
        self._waves = waves * (bend * rng.uniform(0.0, 1.0) ** 0.7, 1.0, 1.0)
        self._hill = float(rng.uniform(-1 / 4200, 1 / 1900)) if drawn.style != "city" else 0.0
        self._camera = Camera(
            width, height, focal=width * float(rng.uniform(0.68, 1.05)), mount_m=float(rng.uniform(1.15, 1.75)),
            pitch=0.0, yaw=float(rng.normal(0.0, 0.025)), roll=float(rng.normal(0.0, 0.009)),
        )  # fmt: skip
        # The horizon is at 40 to 60 per cent of the image's height, as for cameras behind the windscreen.
        drop = (float(rng.uniform(0.4, 0.6)) - 0.5) * height
        self._pitch = float(np.arctan(-drop / self._camera.focal))
        self._traffic = traffic.Traffic(rng, drawn, self._section, self._speed, lane, key)

    def scene(self, seconds: float, frame: int = 0) -> Scene:
        """The scene at a time; `frame` seeds the noise."""
        travelled = self._speed * seconds
        # The camera's pitching and swaying motion.
        nod = 0.0022 * np.sin(7.1 * seconds) + 0.0016 * np.sin(11.7 * seconds + 1.0)
        sway = 0.006 * np.sin(0.5 * seconds + 1.2)
        camera = replace(self._camera, pitch=self._pitch + float(nod), yaw=self._camera.yaw + float(sway))
        strength, length, phase = self._waves.T[:, :, None]
        curvature = (strength * np.sin(2 * np.pi * (_GRID + travelled) / length + phase)).sum(axis=0)
        path = RoadPath(_GRID, curvature, self._hill, self._lateral + 0.12 * np.sin(0.5 * seconds))
        canvas = Canvas(camera, self._light)
        turned = float(self._waves[:, 0] @ (1 - np.cos(2 * np.pi * travelled / self._waves[:, 1])) * 12.0)
        self._draw_backdrop(canvas, camera.yaw + turned)
        draw_ground(canvas, path, self._section, travelled)
        draw_markings(canvas, path, self._section, travelled)
        drawn = self._draw_actors(canvas, path, seconds)
        lane_mask = lane_truth(canvas, path, self._section)
        class_ids = np.array([class_id for class_id, _, _ in drawn], np.int64)
        boxes = np.array([silhouette.box for _, silhouette, _ in drawn], np.float32).reshape(-1, 4)
        sizes = np.array([(silhouette.pixels, silhouette.inside, contrast) for _, silhouette, contrast in drawn])
        pixels, inside, contrast = sizes.reshape(-1, 3).T
        seen = np.bincount(canvas.owner.ravel(), minlength=256)[1 : len(drawn) + 1]
        lowest = np.array(MIN_HEIGHT)[class_ids] * canvas.camera.height
        kept = (seen >= MIN_VISIBLE * pixels) & (contrast >= VISIBLE_CONTRAST)
        kept &= (inside >= MIN_INSIDE) | (pixels >= MIN_PIXELS * canvas.owner.size)
        kept &= (boxes[:, 3] - boxes[:, 1] >= lowest) & (boxes[:, 2] - boxes[:, 0] >= 0.3 * lowest)
        image = self._expose(canvas.image, frame)
        return Scene(image, lane_mask, boxes[kept], class_ids[kept], boxes[~kept & (seen > 0)], self.conditions)

    def _draw_actors(self, canvas: Canvas, path: RoadPath, seconds: float) -> list[tuple[int, Silhouette, float]]:
        """Draw all actors from far to near; returns class, silhouette and contrast (what fog leaves of it, 0..1) of the
        objects of the truth.
        """
        actors = self._traffic.actors(seconds, 3.5 * self._light.visibility_m)  # fog hides the rest
        placed = [(path.at(s, d)[0], mesh, class_id, s, turn) for mesh, class_id, s, d, turn in actors]
        drawn: list[tuple[int, Silhouette, float]] = []
        for position, mesh, class_id, s, turn in sorted(placed, key=lambda item: -float(np.hypot(*item[0][[0, 2]]))):
            if position[2] <= -12.0:
                continue
            facing = float(np.arctan2(position[0], max(position[2], 0.1)))
            heading = facing if turn is None else path.heading(s) + turn
            number = len(drawn) + 1 if class_id is not None and len(drawn) < SCENERY - 1 else SCENERY
            silhouette = canvas.draw(mesh, position, heading, number)
            if silhouette is not None and class_id is not None:
                contrast = float(self._light.transmittance(np.hypot(position[0], position[2])))
                drawn.append((class_id, silhouette, contrast))
        return drawn


class Drive:
    """A drive along generated road: frame after frame of moving traffic, or any frame by its index."""

    def __init__(self, world: Callable[[int], World], length: int, hz: float, stretch_s: float) -> None:
        """world: the road of each stretch by its number, which takes `stretch_s` seconds."""
        self._world, self._length, self._hz = lru_cache(maxsize=1)(world), length, hz
        self._stretch = max(1, round(stretch_s * hz)) if stretch_s > 0 else length

    def frame(self, index: int) -> Scene:
        """The frame at `index` / hz seconds; IndexError outside 0 .. length - 1."""
        if not 0 <= index < self._length:
            raise IndexError(f"frame {index} of a drive of {self._length} frames")
        stretch, step = divmod(index, self._stretch)
        return self._world(stretch).scene(step / self._hz, index)


class SceneGenerator:
    """Scenes by index, and drives. width, height: pixels, MIN_SIDE to MAX_SIDE. seed: nonnegative."""

    def __init__(self, width: int, height: int, seed: int) -> None:
        if not (MIN_SIDE <= width <= MAX_SIDE and MIN_SIDE <= height <= MAX_SIDE):
            raise ValueError(f"scene size {width}x{height}: each side must be {MIN_SIDE} to {MAX_SIDE} pixels")
        if seed < 0:
            raise ValueError(f"scene seed {seed}: must not be negative")
        self.width, self.height, self.seed = width, height, seed

    def scene(self, index: int) -> Scene:
        """Scene number `index` >= 0; each has its own road, light, weather and camera."""
        if index < 0:
            raise ValueError(f"scene index {index}: must not be negative")
        seconds = float(np.random.default_rng((self.seed, 2, index)).uniform(0.0, 60.0))
        return World(self.width, self.height, (self.seed, 0, index)).scene(seconds, index)

    def drive(self, length: int, hz: float, stretch_s: float = 10.0) -> Drive:
        """A drive of `length` frames at `hz` frames per second. Road and weather change every `stretch_s` seconds; 0:
        never.
        """
        if length < 1 or not hz > 0:
            raise ValueError(f"drive of {length} frames at {hz} Hz: both must be positive")
        return Drive(lambda stretch: World(self.width, self.height, (self.seed, 1, stretch)), length, hz, stretch_s)
