"""Cars and trucks as meshes: a few body shapes, random paint, proportions, lamps and windows."""

from __future__ import annotations

import numpy as np

from multi_dnn_ros.training.rendering.camera import Points
from multi_dnn_ros.training.rendering.mesh import Colour, Mesh, MeshBuilder

_PAINTS: tuple[Colour, ...] = (
    (232, 232, 230), (205, 207, 210), (150, 154, 160), (96, 100, 106), (42, 44, 48), (26, 27, 30),
    (150, 26, 30), (178, 44, 36), (28, 52, 108), (44, 86, 150), (24, 74, 62), (96, 112, 70),
    (196, 160, 60), (168, 96, 40), (112, 40, 60), (214, 202, 176), (62, 118, 130),
)  # fmt: skip
_GLASS: Colour = (52, 62, 74)
_TYRE: Colour = (24, 24, 25)
_HUB: Colour = (132, 134, 138)
_UNDER: Colour = (20, 20, 22)


def _paint(rng: np.random.Generator) -> Colour:
    base = np.asarray(_PAINTS[int(rng.integers(len(_PAINTS)))]) + rng.uniform(-14, 14, 3)
    r, g, b = np.clip(base, 8, 245).tolist()
    return (r, g, b)


def _scaled(colour: Colour, factor: float) -> Colour:
    r, g, b = (min(255.0, c * factor) for c in colour)
    return (r, g, b)


def car(rng: np.random.Generator, lamps_on: bool, braking: bool = False) -> Mesh:
    """A saloon, hatchback, estate or SUV, about 4 to 5 m long, facing +z, its middle above the origin."""
    shape = ("saloon", "hatchback", "estate", "suv")[int(rng.choice(4, p=[0.34, 0.26, 0.14, 0.26]))]
    length = {"saloon": 4.6, "hatchback": 4.0, "estate": 4.6, "suv": 4.6}[shape] * rng.uniform(0.94, 1.06)
    width = (1.92 if shape == "suv" else 1.8) * rng.uniform(0.95, 1.05)
    height = (1.74 if shape == "suv" else 1.45) * rng.uniform(0.96, 1.05)
    belt = height * (0.6 if shape == "suv" else 0.62)
    floor = 0.34 if shape == "suv" else 0.27
    wheel = 0.36 if shape == "suv" else 0.32
    paint = _paint(rng)
    half, back, front = width / 2, -length / 2, length / 2
    m = MeshBuilder()
    m.prism((half * 0.9, back + 0.15, front - 0.15), (half * 0.9, back + 0.15, front - 0.15), 0.16, floor + 0.1, _UNDER)
    lower = m.prism((half, back, front), (half, back, front), floor, floor + 0.22, _scaled(paint, 0.82))
    hood = 0.16 if shape == "suv" else 0.22
    body = m.prism(
        (half, back, front),
        (half * 0.95, back + 0.06, front - hood),
        floor + 0.22,
        belt,
        paint,
        roof=_scaled(paint, 1.08),
    )
    _wheels(m, half, (back + 0.18 * length, front - 0.18 * length), wheel)
    rear = {"saloon": 0.17, "hatchback": 0.03, "estate": 0.02, "suv": 0.03}[shape] * length
    slope = {"saloon": 0.62, "hatchback": 0.34, "estate": 0.2, "suv": 0.22}[shape]
    screen = {"saloon": 0.28, "hatchback": 0.25, "estate": 0.27, "suv": 0.25}[shape] * length
    cabin = m.prism(
        (half * 0.93, back + rear, front - screen),
        (half * 0.74, back + rear + slope, front - screen - 0.75),
        belt,
        height,
        _scaled(paint, 0.96),
        roof=_scaled(paint, 1.1),
    )
    glass = tuple(np.clip(np.asarray(_GLASS) * rng.uniform(0.7, 1.35), 0, 255).tolist())
    m.patch(cabin["back"], 0.08, 0.12, 0.92, 0.88, glass)
    m.patch(cabin["front"], 0.06, 0.06, 0.94, 0.92, _scaled(glass, 1.15))
    for side, cut in (("left", 0.46), ("right", 0.54)):
        m.patch(cabin[side], 0.07, 0.12, cut - 0.02, 0.86, glass)
        m.patch(cabin[side], cut + 0.02, 0.12, 0.93, 0.86, glass)
    _ends(m, body, lower, paint, lamps_on, braking, rng)
    return m.build()


def _ends(
    m: MeshBuilder,
    body: dict[str, Points],
    lower: dict[str, Points],
    paint: Colour,
    lamps_on: bool,
    braking: bool,
    rng: np.random.Generator,
) -> None:
    """Lamps, plates, bumpers and grille."""
    red: Colour = (235, 40, 30) if lamps_on or braking else (150, 24, 24)
    lit = 1.0 if braking else 0.85 if lamps_on else 0.0
    wide = rng.uniform(0.13, 0.22)
    for left in (0.03, 0.97 - wide):
        m.patch(body["back"], left, 0.42, left + wide, 0.82, red, lit)
    m.patch(body["back"], 0.36, 0.16, 0.64, 0.42, (208, 206, 190))
    m.patch(lower["back"], 0.04, 0.05, 0.96, 0.55, _scaled(paint, 0.45))
    white: Colour = (255, 246, 214) if lamps_on else (214, 218, 222)
    for left in (0.04, 0.96 - wide):
        m.patch(body["front"], left, 0.42, left + wide, 0.8, white, 1.0 if lamps_on else 0.0)
    m.patch(body["front"], 0.28, 0.3, 0.72, 0.72, (34, 35, 38))
    m.patch(lower["front"], 0.2, 0.1, 0.8, 0.8, (30, 31, 34))
    m.patch(lower["front"], 0.38, 0.3, 0.62, 0.95, (214, 212, 200))


def _wheels(m: MeshBuilder, half: float, axles: tuple[float, ...], radius: float) -> None:
    for z in axles:
        for side in (-1, 1):
            x = side * (half + 0.012)
            m.disc((x, radius, z), radius * 1.16, _UNDER, outward=side, sides=10)
            m.disc((x, radius, z), radius, _TYRE, outward=side, sides=10)
            m.disc((x, radius, z), radius * 0.58, _HUB, outward=side, sides=8)


def truck(rng: np.random.Generator, lamps_on: bool, braking: bool = False, oncoming: bool = False) -> Mesh:
    """A box van on a lorry chassis, a tipper or an articulated lorry, 6 to 13 m long, facing +z.

    oncoming: seen from the front, so the cab is painted over the load, not under it.
    """
    shape = ("box", "tipper", "articulated")[int(rng.choice(3, p=[0.5, 0.2, 0.3]))]
    width = 2.45 * rng.uniform(0.95, 1.04)
    length = {"box": 7.0, "tipper": 7.2, "articulated": 12.5}[shape] * rng.uniform(0.9, 1.08)
    tall = {"box": 3.3, "tipper": 2.6, "articulated": 3.8}[shape] * rng.uniform(0.94, 1.06)
    half, back, front = width / 2, -length / 2, length / 2
    nose = front - (2.0 if shape == "articulated" else 1.75)
    paint = _paint(rng)
    pale = rng.uniform(190, 240)
    if shape == "tipper":
        load: Colour = ((196, 120, 40), (92, 96, 100), (60, 96, 70), (170, 60, 40))[int(rng.integers(4))]
    else:
        load = (pale, pale, pale * 0.98) if rng.random() < 0.55 else _paint(rng)
    m = MeshBuilder()
    m.prism((half * 0.82, back + 0.1, front - 0.2), (half * 0.82, back + 0.1, front - 0.2), 0.42, 1.0, (36, 36, 38))
    axles = (front - 1.2, back + 1.3) if shape != "articulated" else (front - 1.3, nose - 1.4, back + 1.4, back + 2.6)
    _wheels(m, half * 0.97, axles, 0.5)

    def cab() -> None:
        _cab(m, half, nose + 0.12, front, min(tall, 2.75 if shape != "articulated" else 3.2), paint, lamps_on)

    def cargo() -> None:
        roof = _scaled(load, 0.9 if shape == "tipper" else 1.05)
        faces = m.prism((half, back, nose), (half, back, nose), 1.0, tall, load, roof=roof)
        _cargo_marks(m, faces, load, shape, rng)

    for part in (cargo, cab) if oncoming else (cab, cargo):
        part()
    _truck_rear(m, half, back, lamps_on, braking)
    return m.build()


def _cab(m: MeshBuilder, half: float, back: float, front: float, top: float, paint: Colour, lamps_on: bool) -> None:
    cab = m.prism(
        (half * 0.96, back, front), (half * 0.92, back, front - 0.35), 0.55, top, paint, roof=_scaled(paint, 1.08)
    )
    m.patch(cab["front"], 0.06, 0.5, 0.94, 0.86, _GLASS)
    m.patch(cab["front"], 0.2, 0.2, 0.8, 0.42, (40, 41, 44))
    m.patch(cab["left"], 0.1, 0.5, 0.7, 0.84, _GLASS)
    m.patch(cab["right"], 0.3, 0.5, 0.9, 0.84, _GLASS)
    white: Colour = (255, 246, 214) if lamps_on else (214, 218, 222)
    for left in (0.04, 0.82):
        m.patch(cab["front"], left, 0.05, left + 0.14, 0.16, white, 1.0 if lamps_on else 0.0)


def _cargo_marks(m: MeshBuilder, cargo: dict[str, Points], load: Colour, shape: str, rng: np.random.Generator) -> None:
    dark = _scaled(load, 0.8)
    if shape == "tipper":
        for side in ("left", "right", "back"):
            for k in range(5 if side != "back" else 2):
                left = (k + 0.5) / (5 if side != "back" else 2) - 0.02
                m.patch(cargo[side], left, 0.05, left + 0.04, 0.95, dark)
        return
    for left in (0.02, 0.52):  # the two leaves of the rear doors
        m.patch(cargo["back"], left, 0.03, left + 0.46, 0.97, _scaled(load, 0.93))
    for left in (0.44, 0.54):
        m.patch(cargo["back"], left, 0.08, left + 0.02, 0.92, _scaled(load, 0.6))
    if rng.random() < 0.6:
        band = _paint(rng)
        low = rng.uniform(0.25, 0.5)
        for side in ("left", "right"):
            m.patch(cargo[side], 0.08, low, rng.uniform(0.5, 0.92), low + rng.uniform(0.12, 0.3), band)


def _truck_rear(m: MeshBuilder, half: float, back: float, lamps_on: bool, braking: bool) -> None:
    red: Colour = (235, 40, 30) if lamps_on or braking else (150, 24, 24)
    z = back - 0.01
    bar = np.array([[-half * 0.95, 0.55, z], [half * 0.95, 0.55, z], [half * 0.95, 0.95, z], [-half * 0.95, 0.95, z]])
    m.polygon(bar, (40, 40, 42), one_sided=True)
    for left in (0.03, 0.8):
        m.patch(bar, left, 0.3, left + 0.17, 0.85, red, 1.0 if braking else 0.85 if lamps_on else 0.0)
    m.patch(bar, 0.4, 0.25, 0.6, 0.8, (206, 204, 188))


def footprint(mesh: Mesh) -> Points:
    """(4, 3) corners of the ground below a mesh, for its shadow."""
    (x0, _, z0), (x1, _, z1) = mesh.points.min(axis=0), mesh.points.max(axis=0)
    return np.array([[x0, 0.0, z0], [x1, 0.0, z0], [x1, 0.0, z1], [x0, 0.0, z1]])
