"""A Kalman filter with constant velocity for many boxes at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Standard deviations as shares of the box's size, for one frame at REFERENCE_HZ: of position and size, and of their
#: change per frame. Values of DeepSORT (Wojke et al. 2017), which ByteTrack uses.
_POSITION, _VELOCITY = 1 / 20, 1 / 160
#: Frame rate for which these values were chosen (MOT17 has 25 and 30 Hz).
REFERENCE_HZ = 30.0
#: Minimum size in pixels from which the deviations are computed.
_MIN_SIZE = 1.0


@dataclass
class Motion:
    """N boxes and their motion.

    mean: (N, 4), centre x, centre y, width, height in pixels. velocity: (N, 4), their change per 1/30 s.
    p, pv, v: (N, 4), variance of the mean, its covariance with the velocity, and variance of the velocity. The four
    coordinates are independent of one another, so their 2x2 covariances are stored instead of an 8x8 matrix.
    """

    mean: Array
    velocity: Array
    p: Array
    pv: Array
    v: Array

    @classmethod
    def of(cls, boxes: Array) -> Motion:
        """New boxes at rest. boxes: (N, 4), x1, y1, x2, y2."""
        mean = _centred(boxes)
        size = _sizes(mean)
        return cls(
            mean, np.zeros_like(mean), (2 * _POSITION * size) ** 2, np.zeros_like(mean), (10 * _VELOCITY * size) ** 2
        )

    def __len__(self) -> int:
        return len(self.mean)

    def boxes(self) -> Array:
        """(N, 4), x1, y1, x2, y2; never with a negative width or height."""
        half = np.maximum(self.mean[:, 2:], 0.0) / 2
        return np.concatenate([self.mean[:, :2] - half, self.mean[:, :2] + half], axis=1)

    def predict(self, seconds: float) -> None:
        """Advance by 0 or more seconds. The uncertainty grows with this time, however many frames were lost."""
        frames = seconds * REFERENCE_HZ
        size = _sizes(self.mean)
        self.mean += self.velocity * frames
        self.p += 2 * frames * self.pv + frames**2 * self.v + frames * (_POSITION * size) ** 2
        self.pv += frames * self.v
        self.v += frames * (_VELOCITY * size) ** 2

    def update(self, index: npt.NDArray[np.int64], boxes: Array) -> None:
        """Correct the boxes of these indices by measured boxes, (K, 4), x1, y1, x2, y2."""
        mean, p, pv = self.mean[index], self.p[index], self.pv[index]
        total = p + (_POSITION * _sizes(mean)) ** 2
        gain, velocity_gain = p / total, pv / total
        innovation = _centred(boxes) - mean
        self.mean[index] = mean + gain * innovation
        self.velocity[index] += velocity_gain * innovation
        self.v[index] -= velocity_gain * pv
        self.p[index] = (1 - gain) * p
        self.pv[index] = (1 - gain) * pv

    def keep_size(self, index: npt.NDArray[np.int64]) -> None:
        """Set the change of width and height to 0: by extrapolation, a lost box would grow or vanish."""
        self.velocity[index, 2:] = 0.0

    def select(self, index: npt.NDArray[np.int64]) -> Motion:
        """The boxes of these indices."""
        return Motion(self.mean[index], self.velocity[index], self.p[index], self.pv[index], self.v[index])

    def joined(self, other: Motion) -> Motion:
        """These boxes, then the others."""
        return Motion(
            np.concatenate([self.mean, other.mean]),
            np.concatenate([self.velocity, other.velocity]),
            np.concatenate([self.p, other.p]),
            np.concatenate([self.pv, other.pv]),
            np.concatenate([self.v, other.v]),
        )


def overlaps(first: Array, second: Array) -> Array:
    """Intersection over union, (N, M), of boxes (N, 4) and (M, 4), x1, y1, x2, y2; 0 if both are empty."""
    x1, y1, x2, y2 = first.T[:, :, None]
    u1, v1, u2, v2 = second.T[:, None, :]
    width = np.minimum(x2, u2) - np.maximum(x1, u1)
    height = np.minimum(y2, v2) - np.maximum(y1, v1)
    shared = np.maximum(width, 0.0) * np.maximum(height, 0.0)
    total = (x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - shared
    return np.asarray(shared / np.maximum(total, 1e-9))


def _centred(boxes: Array) -> Array:
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([(low + high) / 2, high - low], axis=1)


def _sizes(mean: Array) -> Array:
    """(N, 4): width, height, width, height. The deviation of x depends on the width, that of y on the height (BoT-SORT,
    Aharon et al. 2022).
    """
    return np.tile(np.maximum(mean[:, 2:], _MIN_SIZE), 2)
