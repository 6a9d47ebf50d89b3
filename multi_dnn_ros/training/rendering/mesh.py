"""Flat-shaded polygons in metres, of which vehicles, pedestrians, houses and trees consist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.rendering.camera import Points

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Mesh:
    """Polygons in paint order, in local coordinates: x right, y up, z forward, origin on the ground.

    points: (N, 3) metres, the polygons one after the other. starts: (M,) first point of each. colours: (M, 3) RGB
    0..255. glow: (M,) 0 = lit by the scene, 1 = shines by itself. normals: (M, 3). one_sided: (M,) not drawn if seen
    from behind.
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
        self._points: list[Points] = []
        self._counts: list[int] = []
        self._colours: list[Colour] = []
        self._glow: list[float] = []
        self._one_sided: list[bool] = []

    def polygon(self, points: npt.ArrayLike, colour: Colour, glow: float = 0.0, one_sided: bool = False) -> None:
        """points: (K, 3), counter-clockwise seen from its front."""
        corners = np.asarray(points, dtype=np.float64)
        self._points.append(corners)
        self._counts.append(len(corners))
        self._colours.append(colour)
        self._glow.append(glow)
        self._one_sided.append(one_sided)

    def prism(
        self,
        bottom: tuple[float, float, float],
        top: tuple[float, float, float],
        y0: float,
        y1: float,
        colour: Colour,
        *,
        roof: Colour | None = None,
    ) -> dict[str, Points]:
        """A possibly tapered box: `bottom` and `top` are (half width, z back, z front).

        Returns its faces, (4, 3) each, from the lower left corner counter-clockwise as seen from outside: "back",
        "front", "left", "right".
        """
        (bw, bb, bf), (tw, tb, tf) = bottom, top
        lo = {"bl": (-bw, y0, bb), "br": (bw, y0, bb), "fl": (-bw, y0, bf), "fr": (bw, y0, bf)}
        hi = {"bl": (-tw, y1, tb), "br": (tw, y1, tb), "fl": (-tw, y1, tf), "fr": (tw, y1, tf)}
        faces = {
            "front": np.array([lo["fr"], lo["fl"], hi["fl"], hi["fr"]]),
            "back": np.array([lo["bl"], lo["br"], hi["br"], hi["bl"]]),
            "left": np.array([lo["fl"], lo["bl"], hi["bl"], hi["fl"]]),
            "right": np.array([lo["br"], lo["fr"], hi["fr"], hi["br"]]),
        }
        self.polygon([hi["bl"], hi["br"], hi["fr"], hi["fl"]], roof or colour, one_sided=True)
        for face in faces.values():
            self.polygon(face, colour, one_sided=True)
        return faces

    def patch(
        self, face: Points, left: float, low: float, right: float, high: float, colour: Colour, glow: float = 0.0
    ) -> None:
        """A quadrilateral on a face of `prism`; the four limits are fractions of the face, 0..1."""
        self.patches(face, np.array([[left, low, right, high]]), [colour], [glow])

    def patches(self, face: Points, limits: Points, colours: Sequence[Colour], glow: Sequence[float]) -> None:
        """Like `patch`, for several quadrilaterals on one face. limits: (K, 4)."""
        u, v = limits[:, (0, 2, 2, 0)], limits[:, (1, 1, 3, 3)]
        weights = np.stack([(1 - u) * (1 - v), u * (1 - v), u * v, (1 - u) * v], axis=2)  # bilinear
        self._points.append((weights @ face).reshape(-1, 3))
        self._counts += [4] * len(limits)
        self._colours += colours
        self._glow += glow
        self._one_sided += [True] * len(limits)

    def disc(self, centre: Sequence[float], radius: float, colour: Colour, *, outward: int, sides: int = 12) -> None:
        """A wheel: a regular polygon in the plane x = const, facing right (`outward` 1) or left (-1)."""
        angle = np.linspace(0.0, 2 * np.pi, sides, endpoint=False) * outward
        ring = np.stack([np.zeros(sides), np.sin(angle), np.cos(angle)], axis=1) * radius + np.asarray(centre)
        self.polygon(ring, colour, one_sided=True)

    def blob(
        self, x: float, y: float, rx: float, ry: float, colour: Colour, ragged: Points | None = None, glow: float = 0.0
    ) -> None:
        """An upright ellipse in the plane z = 0; `ragged` scales its radius point by point."""
        scale = np.ones(10) if ragged is None else ragged
        angle = np.linspace(0.0, 2 * np.pi, len(scale), endpoint=False)
        ring = np.stack([x + rx * scale * np.cos(angle), y + ry * scale * np.sin(angle), np.zeros(len(scale))], axis=1)
        self.polygon(ring, colour, glow)

    def build(self) -> Mesh:
        counts = np.array(self._counts, dtype=np.int64)
        starts = np.cumsum(counts) - counts
        points = np.concatenate(self._points)
        one, two = points[starts + 1] - points[starts], points[starts + 2] - points[starts]
        # two x one, not one x two: the axes are left-handed.
        normals = two[:, (1, 2, 0)] * one[:, (2, 0, 1)] - two[:, (2, 0, 1)] * one[:, (1, 2, 0)]
        normals /= np.maximum(np.sqrt((normals**2).sum(axis=1, keepdims=True)), 1e-9)
        return Mesh(
            points,
            starts,
            counts,
            np.array(self._colours, dtype=np.float64),
            np.array(self._glow, dtype=np.float64),
            normals,
            np.array(self._one_sided, dtype=np.bool_),
        )
