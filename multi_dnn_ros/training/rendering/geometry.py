"""The pinhole camera, the road's centre line in front of it, and meshes of flat-shaded polygons.

Camera coordinates are metres with the ground below the camera as origin: x to the right, y up, z forward. Road
coordinates are `s` metres along the centre line from the camera and `d` metres to its right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]

#: Near plane, metres: polygons are clipped here.
NEAR_M = 0.4


@dataclass(frozen=True)
class Camera:
    """A pinhole camera `mount_m` above the ground; focal length in pixels, angles in radians (pitch down positive)."""

    width: int
    height: int
    focal: float
    mount_m: float
    pitch: float
    yaw: float
    roll: float

    @cached_property
    def rotation(self) -> Points:
        """(3, 3) from camera coordinates as above to the optical frame (x right, y up, z along the optical axis)."""
        cp, sp = np.cos(self.pitch), np.sin(self.pitch)
        cy, sy = np.cos(self.yaw), np.sin(self.yaw)
        cr, sr = np.cos(self.roll), np.sin(self.roll)
        yaw = np.array([[cy, 0.0, -sy], [0.0, 1.0, 0.0], [sy, 0.0, cy]])
        pitch = np.array([[1.0, 0.0, 0.0], [0.0, cp, sp], [0.0, -sp, cp]])
        roll = np.array([[cr, -sr, 0.0], [sr, cr, 0.0], [0.0, 0.0, 1.0]])
        return np.asarray(roll @ pitch @ yaw)

    def optical(self, points: Points) -> Points:
        """(N, 3) points in metres -> (N, 3) in the optical frame."""
        return np.asarray((points - np.array([0.0, self.mount_m, 0.0])) @ self.rotation.T)

    def pixels(self, optical: Points) -> Points:
        """(N, 3) optical points with z >= NEAR_M -> (N, 2) u, v in pixels (u right, v down, pixel centres at .0)."""
        scale = self.focal / optical[:, 2]
        u, v = self.width / 2 - 0.5 + optical[:, 0] * scale, self.height / 2 - 0.5 - optical[:, 1] * scale
        return np.stack([u, v], axis=1)

    def horizon(self) -> float:
        """Row of the horizon in the middle of the image, pixels."""
        return self.height / 2 - 0.5 - self.focal * float(np.tan(self.pitch))


def clip_near(polygon: Points) -> Points:
    """The part of a planar polygon (K, 3), in the optical frame, with z >= NEAR_M (Sutherland and Hodgman 1974)."""
    if (polygon[:, 2] >= NEAR_M).all():
        return polygon
    kept: list[Points] = []
    for a, b in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        if a[2] >= NEAR_M:
            kept.append(a)
        if (a[2] >= NEAR_M) != (b[2] >= NEAR_M):
            kept.append(a + (b - a) * ((NEAR_M - a[2]) / (b[2] - a[2])))
    return np.array(kept).reshape(-1, 3)


class RoadPath:
    """The centre line ahead, integrated from its curvature; all arrays are sampled at the arc lengths `s`."""

    def __init__(self, s: Points, curvature: Points, bend: float, lateral_m: float) -> None:
        """s: (K,) ascending metres with 0 inside. curvature: (K,) 1/m, right positive. bend: vertical curvature, 1/m.
        lateral_m: camera position, metres right of the centre line.
        """
        self.s = s
        step = np.diff(s)
        theta = np.concatenate([[0.0], np.cumsum(0.5 * (curvature[1:] + curvature[:-1]) * step)])
        theta -= np.interp(0.0, s, theta)
        middle = 0.5 * (theta[1:] + theta[:-1])
        x = np.concatenate([[0.0], np.cumsum(np.sin(middle) * step)])
        z = np.concatenate([[0.0], np.cumsum(np.cos(middle) * step)])
        self.theta = theta
        self.x = x - np.interp(0.0, s, x) - lateral_m
        self.z = z - np.interp(0.0, s, z)
        self.y = 0.5 * bend * s * np.abs(s)

    def at(self, s: Points | float, d: float) -> Points:
        """(N, 3) camera coordinates of points on the road, `s` along and `d` to the right."""
        s = np.atleast_1d(s)
        theta = np.interp(s, self.s, self.theta)
        x = np.interp(s, self.s, self.x) + d * np.cos(theta)
        z = np.interp(s, self.s, self.z) - d * np.sin(theta)
        return np.stack([x, np.interp(s, self.s, self.y), z], axis=1)

    def heading(self, s: float) -> float:
        """Direction of the road at `s`, radians, 0 = straight ahead, right positive."""
        return float(np.interp(s, self.s, self.theta))


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
