"""A calibrated lens: pixels to directions, and back. Needs numpy and OpenCV only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]

#: Distortion models of sensor_msgs/CameraInfo (distortion_models.hpp) and their possible numbers of coefficients.
#: With 12 and 14 coefficients, rational_polynomial has OpenCV's thin prism and tilt terms.
MODELS: Mapping[str, tuple[int, ...]] = {
    "plumb_bob": (4, 5),
    "rational_polynomial": (8, 12, 14),
    "equidistant": (4,),
}
#: Distortion is inverted by iteration, at most this number of times. Fewer are enough for most lenses: OpenCV's default
#: of 5 leaves errors of 0.01 pixels at the corners of an ordinary wide-angle lens.
_ITERATIONS = 200
_CRITERIA = (cv2.TERM_CRITERIA_COUNT + cv2.TERM_CRITERIA_EPS, _ITERATIONS, 1e-12)
#: A pixel has no direction if the direction found for it projects further away from it than this, in pixels.
_MAX_MISS = 1e-6


class CalibrationError(ValueError):
    """A calibration cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Lens:
    """Pinhole camera with distortion, as OpenCV and sensor_msgs/CameraInfo define it.

    Optical frame (REP 103): x right, y down, z along the optical axis. Pixel centres have whole coordinates.

    matrix: (3, 3) float64, K. coefficients: D; zeros without distortion. model: a name of MODELS.
    """

    matrix: Points
    coefficients: tuple[float, ...] = (0.0,) * 4
    model: str = "plumb_bob"

    def directions(self, pixels: Points) -> Points:
        """(N, 2) u, v -> (N, 2) x / z, y / z in the optical frame; NaN where no direction projects onto the pixel.

        A distortion polynomial is valid only in the image that it was calibrated with. Outside of it, several
        directions or none may project onto a pixel.
        """
        if not len(pixels):
            return np.empty((0, 2))
        source, distortion = np.ascontiguousarray(pixels, np.float64).reshape(-1, 1, 2), np.array(self.coefficients)
        found: Any
        if self.model == "equidistant":
            found = cv2.fisheye.undistortPoints(source, self.matrix, distortion)
        else:
            found = cv2.undistortPointsIter(source, self.matrix, distortion, np.eye(3), np.eye(3), _CRITERIA)
        directions: Points = np.asarray(found, np.float64).reshape(-1, 2)
        missed = ~(np.abs(self.pixels(directions) - pixels) <= _MAX_MISS).all(axis=1)  # ~(<=): also for NaN
        directions[missed] = np.nan
        return directions

    def pixels(self, directions: Points) -> Points:
        """(N, 2) x / z, y / z -> (N, 2) u, v. NaN and infinity give NaN."""
        pixels = np.full((len(directions), 2), np.nan)
        finite = np.isfinite(directions).all(axis=1)
        if not finite.any():
            return pixels
        points = np.column_stack([directions[finite], np.ones(int(finite.sum()))]).reshape(-1, 1, 3)
        project: Any = cv2.fisheye.projectPoints if self.model == "equidistant" else cv2.projectPoints
        projected = project(points, np.zeros(3), np.zeros(3), self.matrix, np.array(self.coefficients))[0]
        pixels[finite] = np.asarray(projected).reshape(-1, 2)
        return pixels


def checked_lens(matrix: Sequence[float], coefficients: Sequence[float], model: str) -> Lens:
    """The lens of a calibration: 9 numbers of K row by row, D, and the name of the distortion model.

    Raises CalibrationError if the camera is not calibrated, a value is not finite, or the model is unknown.
    """
    numbers = np.array([*matrix, *coefficients], np.float64)
    if not np.isfinite(numbers).all():
        raise CalibrationError("the calibration contains NaN or infinity; calibrate the camera again")
    square = numbers[:9].reshape(3, 3)
    if square[0, 0] <= 0.0 or square[1, 1] <= 0.0:
        raise CalibrationError(
            f"the focal length is {square[0, 0]:g} x {square[1, 1]:g} pixels: the camera is not calibrated; calibrate "
            "it (camera_calibration) and load the file in its driver"
        )
    values = tuple(float(value) for value in coefficients)
    if not any(values):
        return Lens(square)
    allowed = MODELS.get(model)
    if allowed is None:
        raise CalibrationError(
            f"the distortion model '{model}' is not known; allowed: {', '.join(MODELS)}, or none (D empty)"
        )
    if len(values) not in allowed:
        raise CalibrationError(
            f"the distortion model {model} has {len(values)} coefficients; allowed: {', '.join(map(str, allowed))}"
        )
    return Lens(square, values, model)
