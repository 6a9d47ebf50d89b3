"""Moving and standing objects: endless streams of vehicles, people and roadside objects along the road."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from multi_dnn_ros.training.rendering import pedestrians, vehicles
from multi_dnn_ros.training.rendering.mesh import Colour, Mesh, MeshBuilder, one_of, toned, varied
from multi_dnn_ros.training.rendering.road import RoadSection
from multi_dnn_ros.training.rendering.surroundings import Conditions

CAR, TRUCK, PEDESTRIAN = 0, 1, 2
#: Direction of vehicles and buildings, radians relative to the road; other objects face the camera.
_HEADINGS = {"vehicle": 0.0, "parked": 0.0, "oncoming": float(np.pi), "block": 0.0, "house": 0.0}
#: Kinds that are not drawn behind the camera.
_SMALL = ("walker", "stander", "crosser")
_LEAVES: tuple[Colour, ...] = ((62, 88, 44), (84, 100, 48), (50, 76, 50), (120, 104, 52))
_WALLS: tuple[Colour, ...] = (
    (186, 170, 148), (150, 96, 76), (172, 172, 168), (206, 196, 178), (120, 116, 112), (146, 128, 104),
)  # fmt: skip
_ROOFS: tuple[Colour, ...] = ((120, 60, 48), (84, 80, 80), (98, 72, 56))
_STEPS = 32  # poses in a walking cycle, cached during a drive


@dataclass(frozen=True)
class Stream:
    """Objects that pass the camera at one speed and reappear at the far end as different objects.

    d: metres right of the centre line. offsets: metres along a ring of `ring` metres that starts `start` metres from
    the camera. speed: relative to the camera, m/s, away positive. walks: whether people move their legs. sway:
    amplitude of a slow oscillation, metres (cars ahead in the camera's lane).
    """

    kind: str
    d: float
    offsets: tuple[float, ...]
    ring: float
    start: float
    speed: float
    walks: bool = False
    sway: float = 0.0

    def positions(self, seconds: float) -> Iterator[tuple[int, int, float]]:
        """(slot, number of completed laps, s) of every object in the stream."""
        for slot, offset in enumerate(self.offsets):
            distance = offset + self.speed * seconds + self.sway * np.sin(0.35 * seconds + 2.1 * slot)
            lap = int(np.floor(distance / self.ring))
            yield slot, lap, self.start + distance - lap * self.ring


class Actor(NamedTuple):
    """One thing to draw. class_id: CAR, TRUCK, PEDESTRIAN, or None for scenery. s, d: metres; heading: radians relative
    to the road, or None to face the camera.
    """

    mesh: Mesh
    class_id: int | None
    s: float
    d: float
    heading: float | None


class Traffic:
    """The streams of a road; each object keeps its appearance while it is visible."""

    def __init__(
        self, rng: np.random.Generator, conditions: Conditions, section: RoadSection, speed: float, lane: int,
        key: tuple[int, ...],
    ) -> None:  # fmt: skip
        """speed: the camera's speed, m/s. lane: index of its lane in `section.forward`. key: of the appearances."""
        self._rng, self._conditions, self._section, self._speed, self._key = rng, conditions, section, speed, key
        self._streams: list[Stream] = []
        self._appearance = lru_cache(maxsize=1024)(self._make)
        dense = float(rng.uniform(0.7, 1.6))
        for k, d in enumerate(section.forward):
            if k == lane:
                first = float(rng.uniform(9.0, 34.0))
                ahead = (first, first + float(rng.uniform(18, 40)))[: int(rng.integers(0, 3))]
                self._streams.append(Stream("vehicle", d, ahead, 1e6, 0.0, 0.0, sway=min(2.5, 0.15 * first)))
            else:
                drift = float(rng.uniform(-4.0, 4.0) + 1.5 * (lane - k))
                self._add("vehicle", d, 30.0 * dense, 150.0, -12.0, drift)
        for d in section.opposing:
            self._add("oncoming", d, 34.0 * dense, 170.0, -12.0, -2.0 * speed)
        self._add_bystanders()
        self._add_scenery()

    def actors(self, seconds: float, limit_m: float) -> Iterator[Actor]:
        """All objects up to `limit_m` ahead at a time."""
        for number, stream in enumerate(self._streams):
            for slot, lap, s in stream.positions(seconds):
                if s <= limit_m and (s >= 0.0 or stream.kind not in _SMALL):
                    yield self._actor(number, slot, lap, s, seconds)

    def _add(
        self, kind: str, d: float, gap: float, ring: float, start: float, relative: float | None = None,
        walks: bool = False,
    ) -> None:  # fmt: skip
        """gap: mean distance, metres. relative: speed relative to the camera, m/s; None: they stand."""
        count = max(1, round(ring / gap))
        offsets = (np.arange(count) + self._rng.uniform(0.12, 0.88, count)) * ring / count
        speed = -self._speed if relative is None else relative
        self._streams.append(Stream(kind, d, tuple(offsets.tolist()), ring, start, speed, walks))

    def _add_bystanders(self) -> None:
        """Parked vehicles and people."""
        rng, section, add = self._rng, self._section, self._add
        sides = ((-1, section.left), (1, section.right))
        if section.right - (max(section.forward) + 1.6) > 1.7:
            add("parked", section.right - 1.05, rng.uniform(8, 22), 120.0, -10.0)
        if self._conditions.style in ("suburb", "city"):
            crowd = float(rng.uniform(0.6, 1.8))
            for side, edge in sides:
                for _ in range(2):
                    walk = float(rng.choice([-1, 1])) * float(rng.uniform(0.9, 1.6))
                    add("walker", edge + side * 0.4 + side * float(rng.uniform(0.3, 2.4)), 17.0 * crowd, 68.0, -2.0,
                        walk - self._speed, walks=True)  # fmt: skip
                add("stander", edge + side * 0.4 + side * float(rng.uniform(0.3, 2.4)), 40.0 * crowd, 80.0, -2.0)
            if rng.random() < 0.75:
                add("crosser", 0.0, float(rng.uniform(9, 24)), 56.0, 5.0)
        elif rng.random() < 0.6:
            for side, edge in ((-1, section.left - 0.5), (1, section.right + 0.3)):
                walk = float(rng.choice([-1, 1])) * 1.2
                d = edge + side * float(rng.uniform(0.0, 1.5))
                add("walker", d, float(rng.uniform(16, 40)), 64.0, -2.0, walk - self._speed, walks=True)
            if rng.random() < 0.3:
                add("crosser", 0.0, 30.0, 60.0, 7.0)

    def _add_scenery(self) -> None:
        rng, add = self._rng, self._add
        for side, edge in ((-1, self._section.left), (1, self._section.right)):
            if self._conditions.style == "city":
                add("block", edge + side * 14.0, 24.0, 216.0, -20.0)
            elif self._conditions.style == "suburb":
                add("house", edge + side * 15.0, 28.0, 196.0, -16.0)
                add("tree", edge + side * float(rng.uniform(4.5, 7.5)), 17.0, 187.0, -4.0)
            else:
                add("tree", edge + side * float(rng.uniform(6.0, 9.0)), float(rng.uniform(9, 26)), 200.0, -4.0)
                add("tree", edge + side * float(rng.uniform(12.0, 22.0)), float(rng.uniform(8, 20)), 216.0, 6.0)

    def _actor(self, number: int, slot: int, lap: int, s: float, seconds: float) -> Actor:
        stream = self._streams[number]
        appearance, class_id, jitter = self._appearance(number, slot, lap)
        if not isinstance(appearance, pedestrians.Person):
            return Actor(appearance, class_id, s, stream.d + (jitter - 0.5) * 0.5, _HEADINGS.get(stream.kind))
        d = stream.d + (jitter - 0.5) * 0.8
        side_on, stride = 0.15 * np.sign(jitter - 0.5), 0.8 if stream.walks else 0.0
        if stream.kind == "stander":
            side_on, stride = 2.0 * jitter - 1.0, 0.12
        elif stream.kind == "crosser":  # walks back and forth between the two pavements
            left, right = self._section.left - 1.6, self._section.right + 1.6
            wide = right - left
            walked = (1.25 * seconds + 2 * wide * jitter * 7.0) % (2 * wide)
            d, side_on, stride = (left + walked, 1.0, 1.0) if walked < wide else (right - (walked - wide), -1.0, 1.0)
        phase = (5.6 + 1.6 * jitter) * seconds + 40.0 * jitter
        step = int(phase / (2 * np.pi) * _STEPS) % _STEPS
        return Actor(_figure(appearance, step, stride, float(side_on)), PEDESTRIAN, s, d, None)

    def _make(self, number: int, slot: int, lap: int) -> tuple[Any, int | None, float]:
        """Mesh or person, class, and a random number 0..1 of the object in a slot of a stream."""
        rng, stream = np.random.default_rng((*self._key, number, slot, lap & 0xFFFFFFFF)), self._streams[number]
        kind, time, weather = stream.kind, self._conditions.time, self._conditions.weather
        dark = time == "night" or (time == "dusk" and rng.random() < 0.7)
        lamps = (dark or weather in ("rain", "fog", "haze")) and kind != "parked"
        jitter = float(rng.random())
        if kind in ("vehicle", "oncoming", "parked"):
            braking = bool(rng.random() < 0.15)
            if rng.random() < (0.12 if kind == "parked" else 0.34):
                return vehicles.truck(rng, lamps, braking, oncoming=kind == "oncoming"), TRUCK, jitter
            return vehicles.car(rng, lamps, braking), CAR, jitter
        if kind in ("walker", "stander", "crosser"):
            return pedestrians.Person.random(rng), PEDESTRIAN, jitter
        if kind == "tree":
            return _tree(rng), None, jitter
        lit = {"day": 0.0, "dusk": 0.3, "night": 0.45}[time]
        return _house(rng, lit, kind == "block"), None, jitter


@lru_cache(maxsize=4096)
def _figure(person: pedestrians.Person, step: int, stride: float, side_on: float) -> Mesh:
    return person.figure(step * 2 * np.pi / _STEPS, stride, side_on)


def _tree(rng: np.random.Generator) -> Mesh:
    """A conifer or a broad-leaved tree; flat, to be turned to the camera."""
    m = MeshBuilder()
    leaf = varied(rng, one_of(rng, _LEAVES), 14)
    tall = rng.uniform(4.5, 11.0)
    conifer = rng.random() < 0.4
    m.panel(-0.03 * tall, 0.0, 0.03 * tall, 0.45 * tall, varied(rng, (74, 60, 48), 10))
    for k in range(4 if conifer else 6):
        tone = toned(leaf, 0.68 + 0.08 * k)
        if conifer:
            low, high, half = (0.15 + 0.2 * k) * tall, min(1.0, 0.48 + 0.2 * k) * tall, (0.25 - 0.05 * k) * tall
            m.polygon([(-half, low), (half, low), (0.12 * half, high), (-0.12 * half, high)], tone)
        else:
            x, y = rng.uniform(-0.2, 0.2) * tall, rng.uniform(0.52, 0.82) * tall
            m.blob(x, y, rng.uniform(0.15, 0.25) * tall, rng.uniform(0.13, 0.21) * tall, tone)
    return m.build()


def _house(rng: np.random.Generator, lit: float, tall: bool) -> Mesh:
    """A house or a block of flats; lit: share of lit windows. It is centred at x = 0."""
    m = MeshBuilder()
    floors = int(rng.integers(4, 9)) if tall else int(rng.integers(1, 3))
    half, deep = rng.uniform(5.0, 8.0) if tall else rng.uniform(3.5, 5.5), rng.uniform(6.0, 11.0)
    wall, roof, top = varied(rng, one_of(rng, _WALLS), 16), varied(rng, one_of(rng, _ROOFS), 10), 3.0 * floors + 0.4
    faces = m.prism((half, -deep, deep), (half, -deep, deep), 0.0, top, wall)
    if not tall:
        m.prism((half + 0.4, -deep, deep), (0.4, -deep, deep), top, top + rng.uniform(1.6, 2.8), roof)
    dark = varied(rng, (66, 76, 88), 14)
    for side, columns in (("back", 3), ("left", 5), ("right", 5)):
        for k, floor in np.ndindex(columns, floors):
            glows = bool(rng.random() < lit)
            colour = (250.0, 208.0, 130.0) if glows else toned(dark, rng.uniform(0.8, 1.25))
            x, y = (k + 0.24) / columns, (floor * 3.0 + 1.0) / top
            m.patch(faces[side], x, y, x + 0.52 / columns, y + 1.35 / top, colour, 0.6 * glows)
    return m.build()
