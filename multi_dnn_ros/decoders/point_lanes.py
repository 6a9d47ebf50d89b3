"""Lane lines from networks that return points of each line instead of a map."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Lane, Lanes

Floats = npt.NDArray[np.float64]

#: Maximum width of the mask of lane numbers.
_MASK_WIDTH = 320
#: Tolerance in pixels: a network's last row is the edge of the image, and rounding must not move it outside.
_ROUNDING = 1e-3


def in_source(x: Floats, y: Floats, preprocess: Preprocess, source_size: tuple[int, int]) -> tuple[Floats, Floats]:
    """Points x, y in pixels of the network's input -> u, v in pixels of a source image of (H, W)."""
    geometry = preprocess.geometry(source_size)
    return (x - geometry.left) / geometry.scale_x, (y - geometry.top) / geometry.scale_y


def inside(u: Floats, v: Floats, source_size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """Which points lie in the image of (H, W), its edges included."""
    height, width = source_size
    return (u >= -_ROUNDING) & (u <= width + _ROUNDING) & (v >= -_ROUNDING) & (v <= height + _ROUNDING)


def clipped(points: Floats, source_size: tuple[int, int]) -> Floats:
    """Points (K, 2) of :func:`inside` with u in 0..W-1 and v in 0..H-1, as results require."""
    return points.clip(0.0, [source_size[1] - 1, source_size[0] - 1])


def lanes_of_points(found: Sequence[tuple[Floats, float]], source_size: tuple[int, int], max_detections: int) -> Lanes:
    """The best `max_detections` lines, numbered from the left, with a curve fitted to the points of each.

    found: for each line its points (K, 2) u, v in source pixels inside the image, K >= 2, from the bottom up, and its
    score in 0..1. source_size: (H, W).
    """
    best = sorted(found, key=lambda line: -line[1])[:max_detections]
    fitted = [(points, _fitted(points), score) for points, score in best]
    fitted.sort(key=lambda line: float(np.polyval(line[1][::-1], source_size[0] - 1)))
    lanes = tuple(
        Lane(number, points.astype(np.float32), curve, score)
        for number, (points, curve, score) in enumerate(fitted, start=1)
    )
    return Lanes(_numbers(lanes, source_size), lanes, source_size)


def _fitted(points: Floats) -> Floats:
    """c0, c1, c2 of u = c0 + c1 v + c2 v^2 by least squares; with fewer than 3 points the solution of smallest norm."""
    u, v = points.T
    middle, span = v.mean(), max(np.ptp(v), 1.0)
    t = (v - middle) / span
    a, b, c = np.linalg.lstsq(np.stack([np.ones_like(t), t, t * t], axis=1), u, rcond=None)[0]
    b, c = b / span, c / span**2
    return np.array([a - b * middle + c * middle**2, b - 2.0 * c * middle, c])


def _numbers(lanes: Sequence[Lane], source_size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Mask (h, w) of an image of (H, W), at most _MASK_WIDTH columns: the number of the line at each pixel, 0: none."""
    height, width = source_size
    size = (min(_MASK_WIDTH, width), max(1, round(min(_MASK_WIDTH, width) * height / width)))
    numbers = np.zeros((size[1], size[0]), np.uint8)
    scale = np.array([size[0] / width, size[1] / height])
    for lane in lanes:
        points = np.floor(lane.points * scale).astype(np.int32)
        cv2.polylines(numbers, [points], False, lane.number, 2)
    return numbers
