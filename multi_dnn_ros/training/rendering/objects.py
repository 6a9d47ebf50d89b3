"""What stands and moves on and beside the road, as meshes: cars, trucks, pedestrians, trees and houses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from multi_dnn_ros.training.rendering.geometry import Colour, Mesh, MeshBuilder, Points, one_of, toned, varied

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


# --- pedestrians ----------------------------------------------------------------------------------------------------

_SKIN: tuple[Colour, ...] = ((232, 194, 168), (214, 168, 134), (176, 124, 92), (126, 84, 60), (88, 58, 44))
_CLOTH: tuple[Colour, ...] = (
    (34, 36, 44), (64, 66, 72), (118, 118, 122), (220, 218, 212), (172, 34, 38), (214, 96, 40), (226, 190, 60),
    (46, 104, 62), (38, 70, 140), (80, 130, 190), (110, 60, 120), (150, 110, 80), (210, 140, 160), (90, 84, 60),
)  # fmt: skip
_LEGS: tuple[Colour, ...] = (
    (30, 32, 40), (44, 56, 84), (66, 84, 118), (92, 84, 72), (150, 136, 110), (60, 60, 62), (110, 112, 116),
)  # fmt: skip
_HAIR: tuple[Colour, ...] = ((26, 22, 20), (60, 40, 26), (110, 80, 44), (168, 134, 80), (130, 128, 126))
_SHOES: Colour = (28, 26, 26)


def person(rng: np.random.Generator) -> Callable[[float, float, float], Mesh]:
    """A person as a function of the pose. phase: of the walking cycle, radians. stride: 0 standing .. 1 brisk. side_on:
    -1..1, share of the walking direction in the image plane (0 = towards or away from the camera, the sign is left or
    right).
    """
    child = rng.random() < 0.12
    h = float(rng.uniform(1.15, 1.45) if child else rng.normal(1.72, 0.08))
    wide = float(rng.uniform(0.9, 1.25)) * h / 1.72
    skin, top, legs, hair = (varied(rng, one_of(rng, each), 12, 5) for each in (_SKIN, _CLOTH, _LEGS, _HAIR))

    def figure(phase: float, stride: float, side_on: float) -> Mesh:
        depth, swing = abs(side_on), 0.55 * stride * np.sin(phase)
        shoulder, hip = wide * (0.235 - 0.085 * depth), wide * (0.135 - 0.05 * depth)
        m = MeshBuilder()
        bob = 0.015 * h * stride * abs(np.cos(phase))
        y_hip, y_shoulder = 0.5 * h + bob, 0.82 * h + bob

        def arm(side: int, swing: float, colour: Colour) -> None:
            x = side * shoulder * (1.0 - 0.25 * depth) + side * 0.02
            parts = ((0.17 * h, swing, 0.05, 0.043), (0.15 * h, swing + 0.25, 0.043, 0.033))
            u, v = _limbs(m, x, y_shoulder - 0.01 * h, parts, side_on, colour)
            m.blob(u, v - 0.02, 0.04, 0.05, skin)

        # Far arm, legs, body, near arm, head: painted from the far side to the near side.
        arm(-1, swing, toned(top, 0.78))
        for leg in (-1.0, 1.0):
            turn, colour = leg * swing, toned(legs, 0.85 if leg < 0 else 1.0)
            bend = stride * 0.5 * max(0.0, -np.sin(phase) * np.sign(turn) + 0.2)
            parts = ((0.25 * h, turn, 0.085 * wide, 0.062 * wide), (0.25 * h, turn - bend, 0.062 * wide, 0.045 * wide))
            u, v = _limbs(m, leg * hip * 0.62, y_hip + 0.02 * h, parts, side_on, colour)
            toe = 0.13 * side_on
            m.panel(u - 0.055 + min(toe, 0), v - 0.03, u + 0.055 + max(toe, 0), v + 0.04, _SHOES)
        waist = y_hip + 0.05 * h
        m.polygon([(-hip, 0.46 * h), (hip, 0.46 * h), (hip, waist), (-hip, waist)], legs)
        belt, armpit = y_hip - 0.02 * h, y_shoulder - 0.03 * h
        m.polygon([(-hip * 1.06, belt), (hip * 1.06, belt), (shoulder, armpit), (0.8 * shoulder, y_shoulder),
                   (-0.8 * shoulder, y_shoulder), (-shoulder, armpit)], top)  # fmt: skip
        arm(1, -swing, toned(top, 0.92))
        m.panel(-0.045, y_shoulder - 0.02, 0.045, 0.86 * h + bob + 0.02, skin)
        m.blob(0.015 * side_on, 0.93 * h + bob, 0.082 * (1 - 0.08 * depth), 0.07 * h, skin)
        m.blob(-0.02 * side_on, 0.962 * h + bob, 0.086, 0.038 * h, hair)
        return m.build()

    return figure


def _limbs(
    m: MeshBuilder, x: float, y: float, parts: Sequence[tuple[float, float, float, float]], side_on: float,
    colour: Colour,
) -> tuple[float, float]:  # fmt: skip
    """A chain of limbs that hangs at (x, y); returns its end. parts: length, angle to the vertical, half the width at
    both ends.
    """
    for long, angle, wide_a, wide_b in parts:
        u, v = x + long * np.sin(angle) * side_on, max(0.03, y - long * np.cos(angle))
        nx, ny = np.array([y - v, u - x]) / max(float(np.hypot(u - x, v - y)), 1e-6)
        m.polygon([(x + nx * wide_a, y + ny * wide_a), (x - nx * wide_a, y - ny * wide_a),
                   (u - nx * wide_b, v - ny * wide_b), (u + nx * wide_b, v + ny * wide_b)], colour)  # fmt: skip
        x, y = u, v
    return x, y


# --- scenery ----------------------------------------------------------------------------------------------------

_LEAVES: tuple[Colour, ...] = ((62, 88, 44), (84, 100, 48), (50, 76, 50), (120, 104, 52))
_WALLS: tuple[Colour, ...] = (
    (186, 170, 148), (150, 96, 76), (172, 172, 168), (206, 196, 178), (120, 116, 112), (146, 128, 104),
)  # fmt: skip
_ROOFS: tuple[Colour, ...] = ((120, 60, 48), (84, 80, 80), (98, 72, 56))


def tree(rng: np.random.Generator) -> Mesh:
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


def house(rng: np.random.Generator, lit: float, tall: bool) -> Mesh:
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
