"""Moving and standing objects: endless streams of vehicles, people, houses and trees along the road."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from multi_dnn_ros.training.rendering import objects
from multi_dnn_ros.training.rendering.geometry import Mesh
from multi_dnn_ros.training.rendering.road import RoadSection
from multi_dnn_ros.training.rendering.surroundings import Conditions

CAR, TRUCK, PEDESTRIAN = 0, 1, 2
#: Direction of vehicles and buildings, radians relative to the road; other objects face the camera.
_HEADINGS = {"vehicle": 0.0, "parked": 0.0, "oncoming": float(np.pi), "block": 0.0, "house": 0.0}
_PEOPLE = ("walker", "stander", "crosser")
#: By style: kind, distance from the road and mean gap (lowest, highest), length of the ring and its start, metres.
_TREES = (("tree", (6, 9), (9, 26), 200, -4), ("tree", (12, 22), (8, 20), 216, 6))
_SCENERY = {
    "highway": _TREES,
    "country": _TREES,
    "suburb": (("house", (15, 15), (28, 28), 196, -16), ("tree", (4.5, 7.5), (17, 17), 187, -4)),
    "city": (("block", (14, 14), (24, 24), 216, -20),),
}


class Stream(NamedTuple):
    """Objects that pass the camera at one speed and reappear at the far end as different objects.

    d: metres right of the centre line. offsets: metres along a ring of `ring` metres that starts `start` metres from
    the camera. speed: relative to the camera, m/s, away positive. sway: amplitude of a slow oscillation, metres (cars
    ahead in the camera's lane).
    """

    kind: str
    d: float
    offsets: tuple[float, ...]
    ring: float
    start: float
    speed: float
    sway: float = 0.0


#: One thing to draw: mesh; CAR, TRUCK, PEDESTRIAN, or None for scenery; s and d in metres; heading in radians relative
#: to the road, or None to face the camera.
Actor = tuple[Mesh, int | None, float, float, float | None]


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
        for side, edge in ((-1, section.left), (1, section.right)):
            for kind, away, gap, ring, start in _SCENERY[conditions.style]:
                self._add(kind, edge + side * float(rng.uniform(*away)), float(rng.uniform(*gap)), ring, start)

    def actors(self, seconds: float, limit_m: float) -> Iterator[Actor]:
        """All objects up to `limit_m` ahead at a time."""
        for number, stream in enumerate(self._streams):
            for slot, offset in enumerate(stream.offsets):
                distance = offset + stream.speed * seconds + stream.sway * np.sin(0.35 * seconds + 2.1 * slot)
                lap = int(np.floor(distance / stream.ring))
                s = stream.start + distance - lap * stream.ring
                if s <= limit_m and (s >= 0.0 or stream.kind not in _PEOPLE):
                    yield self._actor(stream, self._appearance(number, slot, lap), s, seconds)

    def _add(self, kind: str, d: float, gap: float, ring: float, start: float, relative: float | None = None) -> None:
        """gap: mean distance, metres. relative: speed relative to the camera, m/s; None: they stand."""
        count = max(1, round(ring / gap))
        offsets = (np.arange(count) + self._rng.uniform(0.12, 0.88, count)) * ring / count
        speed = -self._speed if relative is None else relative
        self._streams.append(Stream(kind, d, tuple(offsets.tolist()), ring, start, speed))

    def _add_bystanders(self) -> None:
        """Parked vehicles and people."""
        rng, section, add = self._rng, self._section, self._add
        if section.right - (max(section.forward) + 1.6) > 1.7:
            add("parked", section.right - 1.05, rng.uniform(8, 22), 120.0, -10.0)
        if self._conditions.style in ("suburb", "city"):
            crowd = float(rng.uniform(0.6, 1.8))
            for side, edge in ((-1, section.left - 0.4), (1, section.right + 0.4)):
                for _ in range(2):
                    walk = float(rng.choice([-1, 1])) * float(rng.uniform(0.9, 1.6))
                    d = edge + side * float(rng.uniform(0.3, 2.4))
                    add("walker", d, 17.0 * crowd, 68.0, -2.0, walk - self._speed)
                add("stander", edge + side * float(rng.uniform(0.3, 2.4)), 40.0 * crowd, 80.0, -2.0)
            if rng.random() < 0.75:
                add("crosser", 0.0, float(rng.uniform(9, 24)), 56.0, 5.0)
        elif rng.random() < 0.6:
            for side, edge in ((-1, section.left - 0.5), (1, section.right + 0.3)):
                walk = float(rng.choice([-1, 1])) * 1.2
                d = edge + side * float(rng.uniform(0.0, 1.5))
                add("walker", d, float(rng.uniform(16, 40)), 64.0, -2.0, walk - self._speed)
            if rng.random() < 0.3:
                add("crosser", 0.0, 30.0, 60.0, 7.0)

    def _actor(self, stream: Stream, made: tuple[Any, int | None, float], s: float, seconds: float) -> Actor:
        appearance, class_id, jitter = made
        if class_id != PEDESTRIAN:
            return appearance, class_id, s, stream.d + (jitter - 0.5) * 0.5, _HEADINGS.get(stream.kind)
        d, side_on, stride = stream.d + (jitter - 0.5) * 0.8, 0.15 * np.sign(jitter - 0.5), 0.8
        if stream.kind == "stander":
            side_on, stride = 2.0 * jitter - 1.0, 0.12
        elif stream.kind == "crosser":  # walks back and forth between the two pavements
            left, right = self._section.left - 1.6, self._section.right + 1.6
            wide = right - left
            walked = (1.25 * seconds + 2 * wide * jitter * 7.0) % (2 * wide)
            d, side_on, stride = (left + walked, 1.0, 1.0) if walked < wide else (right - (walked - wide), -1.0, 1.0)
        phase = (5.6 + 1.6 * jitter) * seconds + 40.0 * jitter
        return appearance(phase, stride, float(side_on)), PEDESTRIAN, s, d, None

    def _make(self, number: int, slot: int, lap: int) -> tuple[Any, int | None, float]:
        """Mesh or person, class, and a random number 0..1 of the object in a slot of a stream."""
        rng, kind = np.random.default_rng((*self._key, number, slot, lap & 0xFFFFFFFF)), self._streams[number].kind
        time, weather = self._conditions.time, self._conditions.weather
        dark = time == "night" or (time == "dusk" and rng.random() < 0.7)
        lamps = (dark or weather in ("rain", "fog", "haze")) and kind != "parked"
        jitter = float(rng.random())
        if kind in _PEOPLE:
            return objects.person(rng), PEDESTRIAN, jitter
        if kind == "tree":
            return objects.tree(rng), None, jitter
        if kind in ("house", "block"):
            return objects.house(rng, {"day": 0.0, "dusk": 0.3, "night": 0.45}[time], kind == "block"), None, jitter
        braking = bool(rng.random() < 0.15)
        if rng.random() < (0.12 if kind == "parked" else 0.34):
            return objects.truck(rng, lamps, braking, oncoming=kind == "oncoming"), TRUCK, jitter
        return objects.car(rng, lamps, braking), CAR, jitter
