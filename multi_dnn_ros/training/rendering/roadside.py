"""Roadside objects: trees, houses, lamp posts, signs and small objects that are easily mistaken for people."""

from __future__ import annotations

import numpy as np

from multi_dnn_ros.training.rendering.mesh import Colour, Mesh, MeshBuilder, one_of, toned, varied

_LEAVES: tuple[Colour, ...] = ((62, 88, 44), (84, 100, 48), (50, 76, 50), (120, 104, 52))
_WALLS: tuple[Colour, ...] = (
    (186, 170, 148), (150, 96, 76), (172, 172, 168), (206, 196, 178), (120, 116, 112), (146, 128, 104),
)  # fmt: skip
_ROOFS: tuple[Colour, ...] = ((120, 60, 48), (84, 80, 80), (98, 72, 56))
_LAMPS: tuple[Colour, ...] = ((40, 220, 110), (250, 190, 50), (240, 50, 40))


def tree(rng: np.random.Generator, snow: bool) -> Mesh:
    """A broad-leaved tree, a conifer or a bush; flat, to be turned to the camera."""
    m = MeshBuilder()
    kind = rng.random()
    leaf = varied(rng, one_of(rng, _LEAVES), 14)
    if snow:
        leaf = varied(rng, (168, 176, 182), 14)
    if kind < 0.2:
        for x in (-0.5, 0.4, 0.0):
            m.blob(x, 0.6, 0.9, rng.uniform(0.6, 1.0), toned(leaf, rng.uniform(0.75, 1.0)), rng.uniform(0.8, 1.15, 12))
        return m.build()
    tall = rng.uniform(4.5, 11.0)
    m.panel(-0.03 * tall, 0.0, 0.03 * tall, 0.45 * tall, varied(rng, (74, 60, 48), 10))
    if kind < 0.5:
        for k in range(4):
            low, high = (0.15 + 0.2 * k) * tall, min(1.0, 0.48 + 0.2 * k) * tall
            half = (0.25 - 0.05 * k) * tall
            m.polygon([(-half, low), (half, low), (0.12 * half, high), (-0.12 * half, high)],
                      toned(leaf, 0.68 + 0.08 * k))  # fmt: skip
        return m.build()
    for k in range(6):
        x, y = rng.uniform(-0.2, 0.2) * tall, rng.uniform(0.52, 0.82) * tall
        tone = toned(leaf, 0.68 + 0.08 * k)
        m.blob(x, y, rng.uniform(0.15, 0.25) * tall, rng.uniform(0.13, 0.21) * tall, tone, rng.uniform(0.82, 1.15, 14))
    return m.build()


def house(rng: np.random.Generator, lit: float, tall: bool, snow: bool) -> Mesh:
    """A house with a pitched roof or a block of flats; lit: share of lit windows.

    It is centred at x = 0: place it at least half its width away from the road.
    """
    m = MeshBuilder()
    wall = varied(rng, one_of(rng, _WALLS), 16)
    floors = int(rng.integers(4, 9)) if tall else int(rng.integers(1, 3))
    storey, half = 3.0, rng.uniform(5.0, 8.0) if tall else rng.uniform(3.5, 5.5)
    deep, top = rng.uniform(6.0, 11.0), storey * floors + 0.4
    faces = m.prism((half, -deep, deep), (half, -deep, deep), 0.0, top, wall)
    dark, warm = varied(rng, (66, 76, 88), 14), (250.0, 208.0, 130.0)
    for side, columns in (("back", 3), ("left", 5), ("right", 5)):
        places = [
            ((k + 0.24) / columns, (floor * storey + 1.0) / top) for floor in range(floors) for k in range(columns)
        ]
        glow = rng.random(len(places)) < lit
        tones = rng.uniform(0.8, 1.25, len(places)).tolist()
        for (x, y), on, tone in zip(places, glow.tolist(), tones, strict=True):
            colour = warm if on else toned(dark, tone)
            m.patch(faces[side], x, y, x + 0.52 / columns, y + 1.35 / top, colour, 0.6 * on)
    if not tall:
        roof = (226.0, 230.0, 234.0) if snow else varied(rng, one_of(rng, _ROOFS), 10)
        ridge = top + rng.uniform(1.6, 2.8)
        m.polygon([(-half - 0.3, top, -deep), (half + 0.3, top, -deep), (0, ridge, -deep)], wall, one_sided=True)
        for sign in (-1, 1):
            x = sign * (half + 0.4)
            corners = [(x, top - 0.1, -deep - 0.3), (0, ridge, -deep - 0.3), (0, ridge, deep), (x, top - 0.1, deep)]
            m.polygon(corners if sign < 0 else corners[::-1], toned(roof, 0.9 if sign < 0 else 1.0), one_sided=True)
    return m.build()


def lamp_post(rng: np.random.Generator, lit: bool, towards_road: int) -> Mesh:
    """A street lamp; towards_road: 1 when the road is to its right, -1 to its left."""
    m = MeshBuilder()
    grey = varied(rng, (92, 96, 98), 12)
    tall, arm = rng.uniform(6.5, 8.5), 1.7 * towards_road
    m.panel(-0.08, 0.0, 0.08, tall, grey)
    m.polygon([(0, tall - 0.12), (arm, tall + 0.1), (arm, tall + 0.22), (0, tall)], grey)
    head = [(arm - 0.35, tall + 0.02), (arm + 0.35, tall + 0.02), (arm + 0.3, tall + 0.2), (arm - 0.3, tall + 0.2)]
    m.polygon(head, (255, 226, 170) if lit else (190, 190, 184), 1.0 if lit else 0.0)
    return m.build()


def sign(rng: np.random.Generator) -> Mesh:
    """A traffic sign, a direction board or a traffic light on a post."""
    m = MeshBuilder()
    kind = rng.random()
    m.panel(-0.04, 0.0, 0.04, 2.4, (120, 122, 124))
    if kind < 0.35:
        m.blob(0, 2.45, 0.34, 0.34, (196, 30, 34))
        m.blob(0, 2.45, 0.25, 0.25, (236, 236, 232))
    elif kind < 0.6:
        m.polygon([(0, 2.0), (0.45, 2.45), (0, 2.9), (-0.45, 2.45)], (238, 190, 40))
    elif kind < 0.8:
        wide = rng.uniform(0.7, 1.5)
        m.panel(-wide, 2.2, wide, 3.3, (26, 96, 60) if rng.random() < 0.5 else (30, 70, 150))
        for k in range(2):
            m.panel(-wide * 0.8, 2.45 + 0.42 * k, wide * rng.uniform(0.1, 0.8), 2.62 + 0.42 * k, (226, 230, 228))
    else:
        m.panel(-0.05, 2.4, 0.05, 2.8, (60, 62, 64))
        m.panel(-0.2, 2.6, 0.2, 3.6, (34, 36, 38))
        on = int(rng.integers(3))
        for k, colour in enumerate(_LAMPS):
            m.blob(0, 2.78 + 0.32 * k, 0.11, 0.11, colour if k == on else toned(colour, 0.25), glow=float(k == on))
    return m.build()


def street_furniture(rng: np.random.Generator) -> Mesh:
    """A bollard, bin, hydrant, cone, letter box or bench: at most as large as a person."""
    m = MeshBuilder()
    kind = int(rng.integers(6))
    if kind == 0:
        m.panel(-0.09, 0.0, 0.09, rng.uniform(0.8, 1.1), varied(rng, (70, 72, 74), 20))
        m.panel(-0.09, 0.7, 0.09, 0.8, (226, 222, 210))
    elif kind == 1:
        m.panel(-0.28, 0.0, 0.28, 1.05, varied(rng, (58, 74, 64), 20))
        m.panel(-0.31, 1.0, 0.31, 1.12, (44, 46, 46))
    elif kind == 2:
        m.panel(-0.14, 0.0, 0.14, 0.6, (186, 40, 34))
        m.blob(0, 0.62, 0.15, 0.14, (200, 48, 40))
    elif kind == 3:
        m.polygon([(-0.24, 0), (0.24, 0), (0.05, 0.75), (-0.05, 0.75)], (232, 92, 30))
        m.polygon([(-0.15, 0.3), (0.15, 0.3), (0.1, 0.48), (-0.1, 0.48)], (236, 234, 228))
    elif kind == 4:
        m.panel(-0.05, 0.0, 0.05, 1.0, (60, 60, 62))
        m.panel(-0.24, 0.9, 0.24, 1.5, varied(rng, (30, 70, 150), 30) if rng.random() < 0.5 else (214, 178, 40))
    else:
        m.panel(-0.8, 0.35, 0.8, 0.5, (112, 82, 54))
        m.panel(-0.8, 0.6, 0.8, 0.9, (124, 92, 62))
        for x in (-0.7, 0.7):
            m.panel(x - 0.04, 0.0, x + 0.04, 0.9, (50, 50, 52))
    return m.build()
