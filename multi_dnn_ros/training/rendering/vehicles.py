"""Cars and trucks as meshes: a few body shapes, random paint, proportions, lamps and windows."""

from __future__ import annotations

import numpy as np

from multi_dnn_ros.training.rendering.camera import Points
from multi_dnn_ros.training.rendering.mesh import Colour, Mesh, MeshBuilder, one_of, toned, varied

_PAINTS: tuple[Colour, ...] = (
    (232, 232, 230), (205, 207, 210), (150, 154, 160), (96, 100, 106), (42, 44, 48), (26, 27, 30),
    (150, 26, 30), (178, 44, 36), (28, 52, 108), (44, 86, 150), (24, 74, 62), (96, 112, 70),
    (196, 160, 60), (168, 96, 40), (112, 40, 60), (214, 202, 176), (62, 118, 130),
)  # fmt: skip
_GLASS: Colour = (52, 62, 74)
_TYRE: Colour = (24, 24, 25)
_HUB: Colour = (132, 134, 138)
_UNDER: Colour = (20, 20, 22)
#: Colour and glow of head lamps that are off and on.
_HEAD: tuple[tuple[Colour, float], ...] = (((214, 218, 222), 0.0), ((255, 246, 214), 1.0))


#: Proportions of saloon, hatchback, estate and SUV: length, width, height, heights of floor and wheels, depths of hood
#: and rear window in metres; belt, rear and screen are shares of height and length.
_BODIES = (
    (4.6, 1.8, 1.45, 0.27, 0.32, 0.22, 0.62, 0.62, 0.17, 0.28),
    (4.0, 1.8, 1.45, 0.27, 0.32, 0.22, 0.34, 0.62, 0.03, 0.25),
    (4.6, 1.8, 1.45, 0.27, 0.32, 0.22, 0.2, 0.62, 0.02, 0.27),
    (4.6, 1.92, 1.74, 0.34, 0.36, 0.16, 0.22, 0.6, 0.03, 0.25),
)


def car(rng: np.random.Generator, lamps_on: bool, braking: bool = False) -> Mesh:
    """A saloon, hatchback, estate or SUV, about 4 to 5 m long, facing +z, its middle above the origin."""
    sizes = _BODIES[int(rng.choice(4, p=[0.34, 0.26, 0.14, 0.26]))]
    length, width, height, floor, wheel, hood, slope, belt, rear, screen = sizes
    length, width, height = (length, width, height) * rng.uniform((0.94, 0.95, 0.96), (1.06, 1.05, 1.05))
    belt, rear, screen = belt * height, rear * length, screen * length
    paint = varied(rng, one_of(rng, _PAINTS), 14, 8, 245)
    half, back, front = width / 2, -length / 2, length / 2
    m = MeshBuilder()
    chassis = (half * 0.9, back + 0.15, front - 0.15)
    m.prism(chassis, chassis, 0.16, floor + 0.1, _UNDER)
    lower = m.prism((half, back, front), (half, back, front), floor, floor + 0.22, toned(paint, 0.82))
    shoulder = (half * 0.95, back + 0.06, front - hood)
    body = m.prism((half, back, front), shoulder, floor + 0.22, belt, paint, toned(paint, 1.08))
    _wheels(m, half, (back + 0.18 * length, front - 0.18 * length), wheel)
    sill = (half * 0.93, back + rear, front - screen)
    top = (half * 0.74, back + rear + slope, front - screen - 0.75)
    cabin = m.prism(sill, top, belt, height, toned(paint, 0.96), toned(paint, 1.1))
    glass = toned(_GLASS, rng.uniform(0.7, 1.35))
    m.patch(cabin["back"], 0.08, 0.12, 0.92, 0.88, glass)
    m.patch(cabin["front"], 0.06, 0.06, 0.94, 0.92, toned(glass, 1.15))
    for side, cut in (("left", 0.46), ("right", 0.54)):
        m.patch(cabin[side], 0.07, 0.12, cut - 0.02, 0.86, glass)
        m.patch(cabin[side], cut + 0.02, 0.12, 0.93, 0.86, glass)
    wide = rng.uniform(0.13, 0.22)
    m.patch(body["back"], 0.36, 0.16, 0.64, 0.42, (208, 206, 190))
    m.patch(lower["back"], 0.04, 0.05, 0.96, 0.55, toned(paint, 0.45))
    m.patch(body["front"], 0.28, 0.3, 0.72, 0.72, (34, 35, 38))
    m.patch(lower["front"], 0.2, 0.1, 0.8, 0.8, (30, 31, 34))
    _lamps(m, body["back"], (0.03, 0.97 - wide), wide, 0.42, 0.82, *_rear(lamps_on, braking))
    _lamps(m, body["front"], (0.04, 0.96 - wide), wide, 0.42, 0.8, *_HEAD[lamps_on])
    return m.build()


def truck(rng: np.random.Generator, lamps_on: bool, braking: bool = False, oncoming: bool = False) -> Mesh:
    """A box van on a lorry chassis, or an articulated lorry, 6 to 13 m long, facing +z.

    oncoming: seen from the front, so the cab is painted over the load, not under it.
    """
    long = rng.random() < 0.3
    width = 2.45 * rng.uniform(0.95, 1.04)
    length = (12.5 if long else 7.0) * rng.uniform(0.9, 1.08)
    tall = (3.8 if long else 3.2) * rng.uniform(0.9, 1.06)
    half, back, front = width / 2, -length / 2, length / 2
    nose = front - (2.0 if long else 1.75)
    paint = varied(rng, one_of(rng, _PAINTS), 14, 8, 245)
    pale = rng.uniform(190, 240)
    load = (pale, pale, pale * 0.98) if rng.random() < 0.55 else varied(rng, one_of(rng, _PAINTS), 14, 8, 245)
    m = MeshBuilder()
    chassis = (half * 0.82, back + 0.1, front - 0.2)
    m.prism(chassis, chassis, 0.42, 1.0, (36, 36, 38))
    axles = (front - 1.3, nose - 1.4, back + 1.4, back + 2.6) if long else (front - 1.2, back + 1.3)
    _wheels(m, half * 0.97, axles, 0.5)
    top = min(tall, 3.2 if long else 2.75)
    if not oncoming:
        _cab(m, half, nose + 0.12, front, top, paint, lamps_on)
    faces = m.prism((half, back, nose), (half, back, nose), 1.0, tall, load, toned(load, 1.05))
    for left in (0.02, 0.52):  # the two leaves of the rear doors
        m.patch(faces["back"], left, 0.03, left + 0.46, 0.97, toned(load, 0.93))
    if oncoming:
        _cab(m, half, nose + 0.12, front, top, paint, lamps_on)
    z, wide = back - 0.01, half * 0.95
    bar = np.array([[-wide, 0.55, z], [wide, 0.55, z], [wide, 0.95, z], [-wide, 0.95, z]])
    m.polygon(bar, (40, 40, 42), one_sided=True)
    _lamps(m, bar, (0.03, 0.8), 0.17, 0.3, 0.85, *_rear(lamps_on, braking))
    return m.build()


def _cab(m: MeshBuilder, half: float, back: float, front: float, top: float, paint: Colour, lamps_on: bool) -> None:
    cab = m.prism((half * 0.96, back, front), (half * 0.92, back, front - 0.35), 0.55, top, paint, toned(paint, 1.08))
    m.patch(cab["front"], 0.06, 0.5, 0.94, 0.86, _GLASS)
    m.patch(cab["front"], 0.2, 0.2, 0.8, 0.42, (40, 41, 44))
    m.patch(cab["left"], 0.1, 0.5, 0.7, 0.84, _GLASS)
    m.patch(cab["right"], 0.3, 0.5, 0.9, 0.84, _GLASS)
    _lamps(m, cab["front"], (0.04, 0.82), 0.14, 0.05, 0.16, *_HEAD[lamps_on])


def _wheels(m: MeshBuilder, half: float, axles: tuple[float, ...], radius: float) -> None:
    for z in axles:
        for side in (-1, 1):
            centre = (side * (half + 0.012), radius, z)
            for share, colour, sides in ((1.16, _UNDER, 10), (1.0, _TYRE, 10), (0.58, _HUB, 8)):
                m.disc(centre, radius * share, colour, side, sides)


def _rear(lamps_on: bool, braking: bool) -> tuple[Colour, float]:
    """Colour and glow of rear lamps."""
    return (235, 40, 30) if lamps_on or braking else (150, 24, 24), 1.0 if braking else 0.85 if lamps_on else 0.0


def _lamps(
    m: MeshBuilder, face: Points, lefts: tuple[float, float], wide: float, low: float, high: float, colour: Colour,
    glow: float,
) -> None:  # fmt: skip
    for left in lefts:
        m.patch(face, left, low, left + wide, high, colour, glow)
