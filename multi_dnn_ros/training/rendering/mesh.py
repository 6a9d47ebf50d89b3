"""Flat-shaded polygons in metres, of which vehicles, pedestrians, houses and trees consist, and their colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.rendering.camera import Points

#: RGB, 0..255.
Colour = tuple[float, float, float]


def varied(rng: np.random.Generator, base: Colour, spread: float, low: float = 4, high: float = 250) -> Colour:
    """A colour near `base`, within `low` and `high`."""
    r, g, b = np.clip(np.asarray(base) + rng.uniform(-spread, spread, 3), low, high).tolist()
    return (r, g, b)


def one_of(rng: np.random.Generator, colours: Sequence[Colour]) -> Colour:
    return colours[int(rng.integers(len(colours)))]


def toned(colour: Colour, factor: float) -> Colour:
    """A colour times a factor."""
    r, g, b = (min(255.0, c * factor) for c in colour)
    return (r, g, b)


@dataclass(frozen=True)
class Mesh:
    """Polygons in paint order, in local coordinates: x right, y up, z forward, origin on the ground.

    points: (N, 3) metres, the polygons one after the other. starts, counts: (M,) first point and number of points of
    each. colours: (M, 3). glow: (M,) 0 = lit by the scene, 1 = shines by itself. normals: (M, 3). one_sided: (M,) not
    drawn if seen from behind.
    """

    points: Points
    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    colours: Points
    glow: Points
    normals: Points
    one_sided: npt.NDArray[np.bool_]


class MeshBuilder:
    """Collects polygons; `build` returns the mesh."""

    def __init__(self) -> None:
        self._polygons: list[tuple[Points, Colour, float, bool]] = []

    def polygon(self, points: npt.ArrayLike, colour: Colour, glow: float = 0.0, one_sided: bool = False) -> None:
        """points: (K, 3), counter-clockwise seen from its front; or (K, 2) in the plane z = 0."""
        corners = np.asarray(points, dtype=np.float64)
        if corners.shape[1] == 2:
            corners = np.column_stack([corners, np.zeros(len(corners))])
        self._polygons.append((corners, colour, glow, one_sided))

    def panel(self, x0: float, y0: float, x1: float, y1: float, colour: Colour) -> None:
        """A rectangle in the plane z = 0."""
        self.polygon([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], colour)

    def prism(
        self, bottom: Sequence[float], top: Sequence[float], y0: float, y1: float, colour: Colour,
        roof: Colour | None = None,
    ) -> dict[str, Points]:  # fmt: skip
        """A possibly tapered box: `bottom` and `top` are (half width, z back, z front).

        Returns its faces, (4, 3) each, from the lower left corner counter-clockwise as seen from outside: "back",
        "front", "left", "right".
        """
        (bw, bb, bf), (tw, tb, tf) = bottom, top
        lo = {"bl": (-bw, y0, bb), "br": (bw, y0, bb), "fl": (-bw, y0, bf), "fr": (bw, y0, bf)}
        hi = {"bl": (-tw, y1, tb), "br": (tw, y1, tb), "fl": (-tw, y1, tf), "fr": (tw, y1, tf)}
        sides = {"front": ("fr", "fl"), "back": ("bl", "br"), "left": ("fl", "bl"), "right": ("br", "fr")}
        faces = {side: np.array([lo[a], lo[b], hi[b], hi[a]]) for side, (a, b) in sides.items()}
        self.polygon([hi["bl"], hi["br"], hi["fr"], hi["fl"]], roof or colour, one_sided=True)
        for face in faces.values():
            self.polygon(face, colour, one_sided=True)
        return faces

    def patch(
        self, face: Points, left: float, low: float, right: float, high: float, colour: Colour, glow: float = 0.0
    ) -> None:
        """A quadrilateral on a face of `prism`; the four limits are fractions of the face, 0..1."""
        u, v = np.array([left, right, right, left]), np.array([low, low, high, high])
        weights = np.stack([(1 - u) * (1 - v), u * (1 - v), u * v, (1 - u) * v], axis=1)  # bilinear
        self.polygon(weights @ face, colour, glow, one_sided=True)

    def disc(self, centre: Sequence[float], radius: float, colour: Colour, outward: int, sides: int) -> None:
        """A wheel: a regular polygon in the plane x = const, facing right (`outward` 1) or left (-1)."""
        angle = np.linspace(0.0, 2 * np.pi, sides, endpoint=False) * outward
        ring = np.stack([np.zeros(sides), np.sin(angle), np.cos(angle)], axis=1) * radius + np.asarray(centre)
        self.polygon(ring, colour, one_sided=True)

    def blob(self, x: float, y: float, rx: float, ry: float, colour: Colour) -> None:
        """An upright ellipse in the plane z = 0."""
        angle = np.linspace(0.0, 2 * np.pi, 10, endpoint=False)
        self.polygon(np.stack([x + rx * np.cos(angle), y + ry * np.sin(angle)], axis=1), colour)

    def build(self) -> Mesh:
        corners, colours, glow, one_sided = zip(*self._polygons, strict=True)
        counts = np.array([len(each) for each in corners], dtype=np.int64)
        starts = np.cumsum(counts) - counts
        points = np.concatenate(corners)
        one, two = points[starts + 1] - points[starts], points[starts + 2] - points[starts]
        # two x one, not one x two: the axes are left-handed.
        normals = two[:, (1, 2, 0)] * one[:, (2, 0, 1)] - two[:, (2, 0, 1)] * one[:, (1, 2, 0)]
        normals /= np.maximum(np.sqrt((normals**2).sum(axis=1, keepdims=True)), 1e-9)
        return Mesh(points, starts, counts, np.array(colours, float), np.array(glow), normals, np.array(one_sided))
