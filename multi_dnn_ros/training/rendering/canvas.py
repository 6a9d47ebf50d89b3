"""Light and air, and the image being rendered, with the owner of each pixel."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.rendering.geometry import NEAR_M, Camera, Mesh, Points, clip_near

#: Owner of pixels of scenery, which is not in the truth; objects have the numbers 1 to 254.
SCENERY = 255

#: Minimum remaining contrast in fog for objects and lane lines to be in the truth.
VISIBLE_CONTRAST = 0.2

_SHIFT = 4  # fractional bits of OpenCV's polygon coordinates: edges move by 1/16 pixel
_SPECK = 0.4  # pixels; narrower polygons are not drawn
_LIMIT = 30_000.0  # pixels; OpenCV's fixed-point coordinates overflow far beyond the image


@dataclass(frozen=True)
class Light:
    """ambient: (3,) factor on every colour. sun: (3,) unit vector in camera coordinates towards the sun (or moon).
    contrast: 0..1, darkening of the side away from the sun. fog: (3,) RGB of distant air. visibility_m: distance at
    which contrast falls to 1/e. beam: strength of the headlights, 0 by day.
    """

    ambient: Points
    sun: Points
    contrast: float
    fog: Points
    visibility_m: float
    beam: float

    def transmittance(self, distance: npt.ArrayLike) -> Points:
        """Share of a surface's own light that reaches the camera from `distance` metres."""
        return np.exp(-np.asarray(distance, dtype=np.float64) / self.visibility_m)

    def lit(self, colours: Points, normals: Points, glow: Points, distance: float, x: float) -> Points:
        """Apparent colours (M, 3) of surfaces with (M, 3) colours and normals, `distance` ahead, `x` to the right."""
        facing = 1.0 - self.contrast + self.contrast * np.clip(normals @ self.sun + 0.25, 0.0, 1.0)
        beam = self.beam * np.exp(-distance / 28.0) * np.exp(-((x / (4.0 + 0.25 * distance)) ** 2))
        factor = self.ambient[None, :] * facing[:, None] + beam
        own = colours * (factor * (1.0 - glow[:, None]) + glow[:, None])
        t = float(self.transmittance(distance))
        # Lamps are visible farther through fog than surfaces.
        keep = t + (np.sqrt(t) - t) * glow[:, None]
        seen: Points = np.clip(own * keep + self.fog * (1.0 - keep), 0.0, 255.0)
        return seen

    def flat(self, colour: npt.ArrayLike, distance: npt.ArrayLike) -> Points:
        """Apparent colours (N, 3) of ground of one colour (3,) at (N,) distances."""
        reach = np.atleast_1d(np.asarray(distance, dtype=np.float64))
        beam = self.beam * np.exp(-reach / 22.0)
        own = np.asarray(colour, dtype=np.float64)[None, :] * (self.ambient[None, :] + beam[:, None])
        t = self.transmittance(reach)[:, None]
        return np.clip(own * t + self.fog * (1.0 - t), 0.0, 255.0)


@dataclass(frozen=True)
class Silhouette:
    """The pixels that an object would cover if it were not occluded.

    box: x1, y1, x2, y2 in pixels, x2 and y2 exclusive, tight around the pixels inside the image. pixels: their number.
    inside: share of its projected extent inside the image, 0..1.
    """

    box: tuple[int, int, int, int]
    pixels: int
    inside: float


class Canvas:
    """image: (H, W, 3) uint8 RGB. owner: (H, W) uint8, number of the object drawn last at a pixel, 0 = ground and sky,
    SCENERY = houses and trees.
    """

    def __init__(self, camera: Camera, light: Light) -> None:
        self.camera, self.light = camera, light
        self.image = np.zeros((camera.height, camera.width, 3), np.uint8)
        self.owner = np.zeros((camera.height, camera.width), np.uint8)

    def project(self, points: Points) -> Points:
        """Clip and project a polygon (K, 3) in metres: (K', 2) pixels, possibly empty."""
        polygon = clip_near(self.camera.optical(points))
        return np.clip(self.camera.pixels(polygon), -_LIMIT, _LIMIT) if len(polygon) >= 3 else np.zeros((0, 2))

    def fill(self, pixels: Points, colour: npt.ArrayLike) -> None:
        """Fill a polygon (K, 2), anti-aliased."""
        if len(pixels) >= 3:
            _fill(self.image, _fixed(pixels), np.asarray(colour, dtype=np.float64).tolist(), cv2.LINE_AA)

    def draw(self, mesh: Mesh, position: Points, heading: float, number: int = SCENERY) -> Silhouette | None:
        """Draw a mesh at `position` (3,), rotated by `heading` radians. number: the object's number in `owner`.

        Polygons are filled that face the camera, lie in the image and are larger than _SPECK. Returns the silhouette of
        an object, or None if it lies outside of the image.
        """
        cos, sin = np.cos(heading), np.sin(heading)
        turn = np.array([[cos, 0.0, -sin], [0.0, 1.0, 0.0], [sin, 0.0, cos]])
        optical = self.camera.optical(mesh.points @ turn + position)
        near = optical[:, 2] < NEAR_M
        if near.all():
            return None
        starts, counts = mesh.starts, mesh.counts
        if near.any():
            parts = [clip_near(part) for part in np.split(optical, starts[1:])]
            # Replace a polygon behind the camera by a tiny one, to keep the numbering.
            parts = [part if len(part) >= 3 else np.repeat([[0.0, 1e6, 1.0]], 3, axis=0) for part in parts]
            counts = np.array([len(part) for part in parts], dtype=np.int64)
            starts = np.cumsum(counts) - counts
            optical = np.concatenate(parts)
        pixels = np.clip(self.camera.pixels(optical), -_LIMIT, _LIMIT)
        low, high = np.minimum.reduceat(pixels, starts), np.maximum.reduceat(pixels, starts)
        one, two = pixels[starts + 1] - pixels[starts], pixels[starts + 2] - pixels[starts]
        facing = ~mesh.one_sided | (one[:, 0] * two[:, 1] - one[:, 1] * two[:, 0] < 0.0)
        facing &= low[:, 1] > -_LIMIT  # excludes the tiny polygons
        inside = (high >= 0).all(axis=1) & (low < (self.camera.width, self.camera.height)).all(axis=1)
        drawn = np.flatnonzero(facing & inside & ((high - low).min(axis=1) > _SPECK)).tolist()
        if not drawn:
            return None
        distance = float(max(np.hypot(position[0], position[2]), 0.5))
        colours = self.light.lit(mesh.colours, mesh.normals @ turn, mesh.glow, distance, float(position[0]))
        fixed = _fixed(pixels)
        polygons = [fixed[starts[k] : starts[k] + counts[k]] for k in drawn]
        for k, polygon in zip(drawn, polygons, strict=True):
            _fill(self.image, polygon, colours[k].tolist(), cv2.LINE_AA)
            _fill(self.owner, polygon, number)
        return (
            None if number == SCENERY else self._silhouette(low[facing].min(axis=0), high[facing].max(axis=0), number)
        )

    def _silhouette(self, low: Points, high: Points, number: int) -> Silhouette | None:
        """Of the object that was drawn last, whose projection lies between two corners."""
        x0, y0 = (max(0, int(edge) - 1) for edge in low.tolist())
        mask = (self.owner[y0 : max(0, int(high[1]) + 3), x0 : max(0, int(high[0]) + 3)] == number).view(np.uint8)
        left, top, width, height = cv2.boundingRect(mask) if mask.size else (0, 0, 0, 0)
        if width == 0 or height == 0:
            return None
        box = (x0 + left, y0 + top, x0 + left + width, y0 + top + height)
        inside = width * height / max(float(np.prod(high - low)), 1e-6)
        return Silhouette(box, int(cv2.countNonZero(mask)), min(1.0, inside))


def _fixed(pixels: Points) -> npt.NDArray[np.int32]:
    return np.rint(pixels * (1 << _SHIFT)).astype(np.int32)


def _fill(
    image: npt.NDArray[np.uint8], fixed: npt.NDArray[np.int32], colour: list[float] | float, kind: int = cv2.LINE_8
) -> None:
    """Fill a polygon in fixed-point pixels."""
    cv2.fillPoly(image, [fixed], colour, kind, _SHIFT)
