"""The pinhole camera and the road's centre line in front of it.

Camera coordinates are metres with the ground below the camera as origin: x to the right, y up, z forward. Road
coordinates are `s` metres along the centre line from the camera and `d` metres to its right.
"""

from __future__ import annotations

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
