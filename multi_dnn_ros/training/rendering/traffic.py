"""Moving and standing objects: endless streams of vehicles, people and roadside objects along the road."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from multi_dnn_ros.training.rendering import pedestrians, roadside, vehicles
from multi_dnn_ros.training.rendering.mesh import Mesh
from multi_dnn_ros.training.rendering.road import RoadSection
from multi_dnn_ros.training.rendering.surroundings import Conditions

CAR, TRUCK, PEDESTRIAN = 0, 1, 2

_STEPS = 32  # poses in a walking cycle, cached during a drive


@dataclass(frozen=True)
class Stream:
    """Objects that pass the camera at one speed and reappear at the far end as different objects.

    kind: kind of the objects. d: metres right of the centre line. offsets: (K,) metres along a ring of `ring` metres
    that starts `start` metres from the camera. speed: relative to the camera, m/s, away positive. ground: speed over
    ground, m/s. sway: amplitude of a slow oscillation, metres (cars ahead in the camera's lane). across: None, or
    (from, to) offsets between which people walk back and forth.
    """

    kind: str
    number: int
    d: float
    offsets: tuple[float, ...]
    ring: float
    start: float
    speed: float
    ground: float = 0.0
    sway: float = 0.0
    across: tuple[float, float] | None = None

    def positions(self, seconds: float) -> Iterator[tuple[int, int, float]]:
        """(slot, number of completed laps, s) of every object in the stream."""
        for slot, offset in enumerate(self.offsets):
            distance = offset + self.speed * seconds + self.sway * np.sin(0.35 * seconds + 2.1 * slot)
            lap = int(np.floor(distance / self.ring))
            yield slot, lap, self.start + distance - lap * self.ring


@dataclass(frozen=True)
class Actor:
    """One thing to draw. class_id: CAR, TRUCK, PEDESTRIAN, or None for scenery. s, d: metres; heading: radians relative
    to the road, or None to face the camera.
    """

    mesh: Mesh
    class_id: int | None
    s: float
    d: float
    heading: float | None
    casts_shadow: bool


def plan(
    rng: np.random.Generator, conditions: Conditions, section: RoadSection, speed: float, lane: int
) -> list[Stream]:
    """Streams for a road. speed: the camera's speed, m/s. lane: index of the camera's lane in `section.forward`."""
    streams: list[Stream] = []

    def add(kind: str, d: float, gap: float, ring: float, start: float, relative: float, **more: float) -> None:
        count = max(1, round(ring / gap))
        base = (np.arange(count) + rng.uniform(0.12, 0.88, count)) * ring / count
        across = more.pop("walk", 0.0)
        streams.append(
            Stream(
                kind, len(streams), d, tuple(base.tolist()), ring, start, relative, ground=more.get("ground", 0.0),
                across=(section.left - 1.6, section.right + 1.6) if across else None,
            )
        )  # fmt: skip

    dense = float(rng.uniform(0.7, 1.6))
    for k, d in enumerate(section.forward):
        if k == lane:
            first = float(rng.uniform(9.0, 34.0))
            ahead = (first, first + float(rng.uniform(18, 40)))[: int(rng.integers(0, 3))]
            streams.append(
                Stream("vehicle", len(streams), d, ahead, 1e6, 0.0, 0.0, ground=speed, sway=min(2.5, 0.15 * first))
            )
        else:
            drift = float(rng.uniform(-4.0, 4.0) + 1.5 * (lane - k))
            add("vehicle", d, 30.0 * dense, 150.0, -12.0, drift, ground=speed + drift)
    for d in section.opposing:
        add("oncoming", d, 34.0 * dense, 170.0, -12.0, -2.0 * speed, ground=-speed)
    _bystanders(rng, conditions, section, speed, add)
    _scenery(rng, conditions, section, speed, add)
    return streams


def _bystanders(
    rng: np.random.Generator, conditions: Conditions, section: RoadSection, speed: float, add: Callable[..., None]
) -> None:
    """Parked vehicles and people."""
    lines_right, lines_left = max(section.forward) + 1.6, section.left
    urban = conditions.style in ("suburb", "city")
    if section.right - lines_right > 1.7:
        add("parked", section.right - 1.05, rng.uniform(8, 22), 120.0, -10.0, -speed)
    if urban:
        crowd = float(rng.uniform(0.6, 1.8))
        for side, edge in ((-1, section.left - 0.4), (1, section.right + 0.4)):
            for _ in range(2):
                walk = float(rng.choice([-1, 1])) * float(rng.uniform(0.9, 1.6))
                d = edge + side * float(rng.uniform(0.3, 2.4))
                add("walker", d, 17.0 * crowd, 68.0, -2.0, walk - speed, ground=walk)
            d = edge + side * float(rng.uniform(0.3, 2.4))
            add("stander", d, 40.0 * crowd, 80.0, -2.0, -speed)
        if rng.random() < 0.75:
            add("crosser", 0.0, float(rng.uniform(9, 24)), 56.0, 5.0, -speed, walk=1.0)
        return
    if rng.random() < 0.6:
        for side, edge in ((-1, lines_left - 0.5), (1, section.right + 0.3)):
            walk = float(rng.choice([-1, 1])) * 1.2
            d = edge + side * float(rng.uniform(0.0, 1.5))
            add("walker", d, float(rng.uniform(16, 40)), 64.0, -2.0, walk - speed, ground=walk)
        if rng.random() < 0.3:
            add("crosser", 0.0, 30.0, 60.0, 7.0, -speed, walk=1.0)


def _scenery(
    rng: np.random.Generator, conditions: Conditions, section: RoadSection, speed: float, add: Callable[..., None]
) -> None:
    style = conditions.style
    for side, edge in ((-1, section.left), (1, section.right)):
        if style == "city":
            add("block", edge + side * 14.0, 24.0, 216.0, -20.0, -speed)
            add("lamp", edge + side * 1.0, 32.0, 160.0, -4.0, -speed)
            add("thing", edge + side * 1.2, 22.0, 88.0, -2.0, -speed)
            add("sign", edge + side * 0.9, 60.0, 120.0, -2.0, -speed)
            if rng.random() < 0.5:
                add("tree", edge + side * 1.4, 21.0, 168.0, -4.0, -speed)
        elif style == "suburb":
            add("house", edge + side * 15.0, 28.0, 196.0, -16.0, -speed)
            add("tree", edge + side * float(rng.uniform(4.5, 7.5)), 17.0, 187.0, -4.0, -speed)
            add("lamp", edge + side * 0.9, 38.0, 152.0, -4.0, -speed)
            add("thing", edge + side * 1.4, 34.0, 102.0, -2.0, -speed)
            add("sign", edge + side * 0.8, 70.0, 140.0, -2.0, -speed)
        else:
            add("tree", edge + side * float(rng.uniform(6.0, 9.0)), float(rng.uniform(9, 26)), 200.0, -4.0, -speed)
            add("tree", edge + side * float(rng.uniform(12.0, 22.0)), float(rng.uniform(8, 20)), 216.0, 6.0, -speed)
            add("sign", edge + side * 1.8, 55.0, 165.0, -2.0, -speed)
            if rng.random() < 0.3:
                add("house", edge + side * 26.0, 60.0, 200.0, 10.0, -speed)
            if rng.random() < 0.4:
                add("thing", edge + side * 1.6, 40.0, 120.0, -2.0, -speed)


@lru_cache(maxsize=4096)
def _figure(person: pedestrians.Person, step: int, stride: float, side_on: float) -> Mesh:
    return person.figure(step * 2 * np.pi / _STEPS, stride, side_on)


class ActorList:
    """Creates the actors of the streams; each actor keeps its appearance while it is visible."""

    def __init__(self, key: tuple[int, ...], conditions: Conditions) -> None:
        self._key = key
        self._conditions = conditions
        self._meshes: dict[tuple[int, int, int], tuple[Mesh | pedestrians.Person, int | None, float]] = {}

    def actor(self, stream: Stream, slot: int, lap: int, s: float, seconds: float) -> Actor:
        """The object in a slot of a stream at a time."""
        key = (stream.number, slot, lap)
        if key not in self._meshes:
            if len(self._meshes) > 600:  # on a long drive, drop objects that have passed
                self._meshes.clear()
            self._meshes[key] = self._make(
                stream, np.random.default_rng((*self._key, stream.number, slot, lap & 0xFFFFFFFF))
            )
        appearance, class_id, jitter = self._meshes[key]
        if isinstance(appearance, pedestrians.Person):
            return self._person(appearance, stream, s, jitter, seconds)
        heading: float | None = None
        if stream.kind in ("vehicle", "parked"):
            heading = 0.0
        elif stream.kind == "oncoming":
            heading = float(np.pi)
        elif stream.kind in ("block", "house"):
            heading = 0.0
        d = stream.d + (jitter - 0.5) * 0.5
        return Actor(appearance, class_id, s, d, heading, casts_shadow=stream.kind != "tree")

    def _person(self, person: pedestrians.Person, stream: Stream, s: float, jitter: float, seconds: float) -> Actor:
        pace = 5.6 + 1.6 * jitter
        phase = pace * seconds + 40.0 * jitter
        d = stream.d + (jitter - 0.5) * 0.8
        side_on, stride = 0.15 * np.sign(jitter - 0.5), 0.8 if stream.ground else 0.0
        if stream.kind == "stander":
            side_on, stride = 2.0 * jitter - 1.0, 0.12
        if stream.across is not None:
            left, right = stream.across
            wide = right - left
            walked = (1.25 * seconds + 2 * wide * jitter * 7.0) % (2 * wide)
            d, side_on, stride = (left + walked, 1.0, 1.0) if walked < wide else (right - (walked - wide), -1.0, 1.0)
        step = int(phase / (2 * np.pi) * _STEPS) % _STEPS
        return Actor(_figure(person, step, stride, float(side_on)), PEDESTRIAN, s, d, None, casts_shadow=True)

    def _make(self, stream: Stream, rng: np.random.Generator) -> tuple[Mesh | pedestrians.Person, int | None, float]:
        conditions = self._conditions
        dark = conditions.time == "night" or (conditions.time == "dusk" and rng.random() < 0.7)
        lamps = (dark or conditions.weather in ("rain", "fog", "snow")) and stream.kind != "parked"
        snow = conditions.weather == "snow"
        jitter = float(rng.random())
        kind = stream.kind
        if kind in ("vehicle", "oncoming", "parked"):
            braking = bool(rng.random() < 0.15)
            if rng.random() < (0.12 if kind == "parked" else 0.34):
                return vehicles.truck(rng, lamps, braking, oncoming=kind == "oncoming"), TRUCK, jitter
            return vehicles.car(rng, lamps, braking), CAR, jitter
        if kind in ("walker", "stander", "crosser"):
            return pedestrians.Person.random(rng), PEDESTRIAN, jitter
        if kind == "tree":
            return roadside.tree(rng, snow), None, jitter
        if kind in ("house", "block"):
            lit = {"day": 0.0, "dusk": 0.3, "night": 0.45}[conditions.time]
            return roadside.house(rng, lit, kind == "block", snow), None, jitter
        if kind == "lamp":
            return roadside.lamp_post(rng, conditions.time == "night", 1 if stream.d < 0 else -1), None, jitter
        if kind == "sign":
            return roadside.sign(rng), None, jitter
        return roadside.street_furniture(rng), None, jitter
