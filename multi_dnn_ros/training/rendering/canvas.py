"""The image under construction, together with who owns each of its pixels."""

from __future__ import annotations

from dataclasses import dataclass, field

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.training.rendering.camera import NEAR_M, Camera, Points, clip_near
from multi_dnn_ros.training.rendering.light import Light
from multi_dnn_ros.training.rendering.mesh import Mesh

#: Owner of the pixels of things that are not in the truth; objects have the numbers 1 to 254.
SCENERY = 255

_SHIFT = 4  # fractional bits of OpenCV's polygon coordinates: edges move by 1/16 pixel
_LIMIT = 30_000.0  # pixels; OpenCV's fixed-point coordinates overflow far beyond the image


@dataclass(frozen=True)
class Silhouette:
    """What one object covers when nothing stands in front of it.

    box: x1, y1, x2, y2 in pixels, x2 and y2 exclusive, tight around its pixels inside the image. pixels: how many.
    inside: share of its projected extent that lies inside the image, 0..1.
    """

    box: tuple[int, int, int, int]
    pixels: int
    inside: float


@dataclass
class Canvas:
    """image: (H, W, 3) uint8 RGB. owner: (H, W) uint8, the number of the object drawn last at a pixel, 0 = the ground and
    the sky, SCENERY = a house, a tree, ...
    lamps: pixel (u, v), radius and colour of lights that glow at night.
    """

    camera: Camera
    light: Light
    image: npt.NDArray[np.uint8]
    owner: npt.NDArray[np.uint8]
    lamps: list[tuple[float, float, float, Points]] = field(default_factory=list)

    @classmethod
    def blank(cls, camera: Camera, light: Light) -> Canvas:
        shape = (camera.height, camera.width)
        return cls(camera, light, np.zeros((*shape, 3), np.uint8), np.zeros(shape, np.uint8))

    def ground(self, points: Points) -> Points:
        """(K, 3) points in metres of one polygon, clipped and projected: (K', 2) pixels, possibly empty."""
        polygon = clip_near(self.camera.optical(points))
        if len(polygon) < 3:
            return np.zeros((0, 2))
        return np.clip(self.camera.pixels(polygon), -_LIMIT, _LIMIT)

    def fill(self, pixels: Points, colour: npt.ArrayLike, convex: bool = True) -> None:
        """Fill a polygon (K, 2), anti-aliased."""
        if len(pixels) >= 3:
            fill_polygon(self.image, pixels, np.asarray(colour, dtype=np.float64).tolist(), convex)

    def darken(self, polygons: list[Points], strength: float) -> None:
        """Soft shadows on everything drawn so far; strength 0..1."""
        if not polygons or strength <= 0.0:
            return
        top = int(np.clip(min(polygon[:, 1].min() for polygon in polygons) - 6, 0, self.camera.height - 1))
        mask = np.zeros((self.camera.height - top, self.camera.width), np.uint8)
        for polygon in polygons:
            fill_polygon(mask, polygon - (0, top), 255 * strength)
        keep = cv2.bitwise_not(cv2.blur(mask, (5, 5)))
        cv2.multiply(self.image[top:], cv2.merge([keep] * 3), dst=self.image[top:], scale=1 / 255)

    def draw(self, mesh: Mesh, position: Points, heading: float, number: int = SCENERY) -> Silhouette | None:
        """Draw a mesh standing at `position` (3,) and turned by `heading` radians; objects in the truth have a `number`.

        Returns what it covers, or None when nothing of it falls into the image.
        """
        cos, sin = np.cos(heading), np.sin(heading)
        turn = np.array([[cos, 0.0, -sin], [0.0, 1.0, 0.0], [sin, 0.0, cos]])
        optical = self.camera.optical(mesh.points @ turn + position)
        whole = bool((optical[:, 2] >= NEAR_M).all())
        if not whole and not (optical[:, 2] >= NEAR_M).any():
            return None
        distance = float(max(np.hypot(position[0], position[2]), 0.5))
        colours = self.light.lit(mesh.colours, mesh.normals @ turn, mesh.glow, distance, float(position[0]))
        if whole:
            pixels = np.clip(self.camera.pixels(optical), -_LIMIT, _LIMIT)
            polygons = np.split(pixels, mesh.starts[1:])
        else:
            clipped = [clip_near(part) for part in np.split(optical, mesh.starts[1:])]
            polygons = [
                np.clip(self.camera.pixels(part), -_LIMIT, _LIMIT) if len(part) >= 3 else np.zeros((0, 2))
                for part in clipped
            ]
        return self._paint(mesh, polygons, colours, number)

    def _paint(self, mesh: Mesh, polygons: list[Points], colours: Points, number: int) -> Silhouette | None:
        visible: list[Points] = []
        extent = [np.inf, np.inf, -np.inf, -np.inf]
        for k, polygon in enumerate(polygons):
            if len(polygon) < 3:
                continue
            if mesh.one_sided[k]:
                (ax, ay), (bx, by), (cx, cy) = polygon[:3].tolist()
                if (bx - ax) * (cy - ay) - (by - ay) * (cx - ax) >= 0.0:
                    continue  # seen from behind
            low, high = polygon.min(axis=0).tolist(), polygon.max(axis=0).tolist()
            extent = [min(extent[0], low[0]), min(extent[1], low[1]), max(extent[2], high[0]), max(extent[3], high[1])]
            if high[0] < 0 or high[1] < 0 or low[0] > self.camera.width or low[1] > self.camera.height:
                continue
            fill_polygon(self.image, polygon, colours[k].tolist(), convex=len(polygon) <= 6)
            if mesh.glow[k] > 0.5:
                u, v = polygon.mean(axis=0).tolist()
                self.lamps.append((u, v, max(high[0] - low[0], high[1] - low[1]), colours[k]))
            visible.append(polygon)
        return self._own(visible, extent, number) if visible else None

    def _own(self, polygons: list[Points], extent: list[float], number: int) -> Silhouette | None:
        x0, y0 = max(0, int(extent[0]) - 1), max(0, int(extent[1]) - 1)
        x1 = min(self.camera.width, int(min(extent[2], 1e6)) + 3)
        y1 = min(self.camera.height, int(min(extent[3], 1e6)) + 3)
        if x1 <= x0 or y1 <= y0:
            return None
        mask = np.zeros((y1 - y0, x1 - x0), np.uint8)
        for polygon in polygons:
            fill_polygon(mask, polygon - (x0, y0), 255, convex=len(polygon) <= 6, smooth=False)
        self.owner[y0:y1, x0:x1][mask > 0] = number
        if number == SCENERY:
            return None
        left, top, width, height = cv2.boundingRect(mask)
        if width == 0 or height == 0:
            return None
        box = (x0 + left, y0 + top, x0 + left + width, y0 + top + height)
        area = max((extent[2] - extent[0]) * (extent[3] - extent[1]), 1e-6)
        return Silhouette(box, int(cv2.countNonZero(mask)), min(1.0, width * height / area))


def fill_polygon(
    image: npt.NDArray[np.uint8],
    pixels: Points,
    colour: list[float] | float,
    convex: bool = True,
    smooth: bool = True,
) -> None:
    """Fill a polygon (K, 2) given to a fraction of a pixel."""
    fixed = np.rint(pixels * (1 << _SHIFT)).astype(np.int32)
    kind = cv2.LINE_AA if smooth else cv2.LINE_8
    if convex:
        cv2.fillConvexPoly(image, fixed, colour, kind, _SHIFT)
    else:
        cv2.fillPoly(image, [fixed], colour, kind, _SHIFT)
