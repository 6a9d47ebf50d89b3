"""Projects pixels onto the ground plane; docs/results.md has the formula. Independent of ROS and of lanes.

Vehicle frame (REP 103, REP 105): x forward, y left, z up, metres. Rotations are right-handed about these axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.lens import Lens, Points

#: From a camera's optical frame (x right, y down, z forward) to its body frame (x forward, y left, z up).
_BODY_FROM_OPTICAL = np.array([[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])


@dataclass(frozen=True)
class CameraPose:
    """Pose of the optical frame in the vehicle frame: p_vehicle = rotation @ p_optical + position.

    rotation: (3, 3) float64. position: (3,) float64, metres.
    """

    rotation: Points
    position: Points

    @classmethod
    def mounted(cls, position: Sequence[float], roll: float, pitch: float, yaw: float) -> CameraPose:
        """A camera at `position`, turned by Rz(yaw) Ry(pitch) Rx(roll), as in URDF; angles in radians.

        With all angles 0 it looks forward, level. pitch > 0: down; yaw > 0: to the left; roll > 0: clockwise, seen
        from behind.
        """
        (sr, sp, sy), (cr, cp, cy) = np.sin([roll, pitch, yaw]), np.cos([roll, pitch, yaw])
        about_x = np.array([[1.0, 0.0, 0.0], [0.0, cr, -sr], [0.0, sr, cr]])
        about_y = np.array([[cp, 0.0, sp], [0.0, 1.0, 0.0], [-sp, 0.0, cp]])
        about_z = np.array([[cy, -sy, 0.0], [sy, cy, 0.0], [0.0, 0.0, 1.0]])
        return cls(about_z @ about_y @ about_x @ _BODY_FROM_OPTICAL, np.array(position, np.float64))

    @classmethod
    def of_transform(cls, position: Sequence[float], quaternion: Sequence[float]) -> CameraPose:
        """The pose from the transform of the optical frame to the vehicle frame: translation, quaternion (x, y, z, w).

        Raises ValueError if the quaternion has length 0, or a number is not finite.
        """
        x, y, z, w = numbers = np.array(quaternion, np.float64)
        square = float(numbers @ numbers)
        if not (np.isfinite(numbers).all() and np.isfinite(position).all()) or square < 1e-12:
            raise ValueError(f"position {list(position)}, quaternion {list(quaternion)}: not a rigid motion")
        rotation = np.eye(3) + (2.0 / square) * np.array(
            [
                [-y * y - z * z, x * y - z * w, x * z + y * w],
                [x * y + z * w, -x * x - z * z, y * z - x * w],
                [x * z - y * w, y * z + x * w, -x * x - y * y],
            ]
        )
        return cls(rotation, np.array(position, np.float64))


@dataclass(frozen=True)
class ImageArea:
    """Maps an image to the calibrated image, of which it may be a part (ROI) or a reduced copy (binning, resize).

    offset: left and top, calibrated pixels. scale: calibrated pixels per pixel, horizontal and vertical.
    """

    offset: tuple[float, float] = (0.0, 0.0)
    scale: tuple[float, float] = (1.0, 1.0)

    def calibrated(self, pixels: Points) -> Points:
        """(N, 2) pixels of the image -> pixels of the calibrated image. Pixel edges, not centres, are scaled."""
        found: Points = (pixels + 0.5) * self.scale - 0.5 + self.offset
        return found


@dataclass(frozen=True)
class GroundPoints:
    """Result of a projection: points (N, 3) float64, x, y, z in metres; NaN for a pixel above the horizon, further away
    than the range, or outside of what the lens can see.
    """

    points: Points

    @property
    def kept(self) -> npt.NDArray[np.bool_]:
        """(N,) which points are on the ground within the range."""
        return np.asarray(np.isfinite(self.points).all(axis=1))


@dataclass(frozen=True)
class GroundView:
    """A camera over the ground, the plane z = 0 of the vehicle frame.

    area: the image within the calibrated image. range_m: points at a larger horizontal distance from the camera are
    left out.
    """

    lens: Lens
    area: ImageArea
    pose: CameraPose
    range_m: float = float("inf")

    def project(self, pixels: npt.NDArray[np.floating]) -> GroundPoints:
        """(N, 2) u, v of the image -> where their rays meet the ground."""
        calibrated = self.area.calibrated(np.asarray(pixels, np.float64).reshape(-1, 2))
        directions = self.lens.directions(calibrated)
        rays = np.column_stack([directions, np.ones(len(directions))]) @ self.pose.rotation.T
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            stretch = -self.pose.position[2] / rays[:, 2]  # a ray meets the plane ahead if this is positive
            across = rays[:, :2] * stretch[:, None]
            distance = np.hypot(across[:, 0], across[:, 1])
        kept = (stretch > 0.0) & np.isfinite(distance) & (distance <= self.range_m)
        points = np.full((len(rays), 3), np.nan)
        points[kept, :2] = across[kept] + self.pose.position[:2]
        points[kept, 2] = 0.0
        return GroundPoints(points)
