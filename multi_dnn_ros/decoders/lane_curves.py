"""Lane lines from networks that return points or curves of each line: LSTR (curves), CLRNet (positions per strip)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from multi_dnn_ros.decoders.base import Decoder
from multi_dnn_ros.decoders.base import Floats as Array
from multi_dnn_ros.decoders.layout import EXACT, LIKELY, Bound, Difference, Layout, match
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Lane, Lanes

Floats = npt.NDArray[np.float64]

#: Maximum width of the mask of lane numbers.
_MASK_WIDTH = 320
#: Tolerance in pixels: a network's last row is the edge of the image, and rounding must not move it outside.
_ROUNDING = 1e-3


def in_source(
    x: Floats, y: Floats, preprocess: Preprocess, source_size: tuple[int, int]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Points x, y (N,) in pixels of the network's input -> u, v (N, 2) in pixels of a source image of (H, W), and
    which of them (N,) lie in the image, its edges included.
    """
    geometry = preprocess.geometry(source_size)
    points = np.stack([(x - geometry.left) / geometry.scale_x, (y - geometry.top) / geometry.scale_y], axis=1)
    end = np.array([source_size[1], source_size[0]]) + _ROUNDING
    return points, np.asarray(((points >= -_ROUNDING) & (points <= end)).all(axis=1))


def lanes_of_points(found: Sequence[tuple[Floats, float]], source_size: tuple[int, int], max_detections: int) -> Lanes:
    """The best `max_detections` lines, numbered from the left, with a curve fitted to the points of each.

    found: for each line its points (K, 2) u, v in source pixels inside the image, K >= 2, from the bottom up, and its
    score in 0..1. source_size: (H, W).
    """
    end = np.array([source_size[1], source_size[0]]) - 1.0
    best = [(line.clip(0.0, end), score) for line, score in sorted(found, key=lambda line: -line[1])[:max_detections]]
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


#: Points per line.
_POINTS = 48
#: Numbers of a curve: its two ends, then the coefficients.
_NUMBERS = 8
#: Minimum number of points of a lane.
_MIN_POINTS = 2


class LstrDecoder(Decoder):
    """(1, lines, 2) logits of "none" and "lane", (1, lines, 8) curves -> Lanes; later outputs are not read.

    A curve has its two ends y0 and y1, then k, f, m, n, b, c: x = k / (y - f)^2 + m / (y - f) + n + b y - c, all as
    shares of the image (arXiv:2011.04233, github.com/liuruijin17/LSTR). The score is the softmax of the two logits;
    `iou_threshold` has no effect, as each line is found once.
    """

    name = "lstr"
    signature = "(1, lines, 2) logits, (1, lines, 8) curves; three further outputs are not read (LSTR)"
    result_kind = "lanes"
    default_labels = ("lane",)

    @classmethod
    def matches(cls, layout: Layout) -> Bound | Difference:
        if len(layout.shapes) not in (2, 5):  # of the public exports; the other three are of an earlier layer
            return Difference(f"2 or 5 outputs expected, found {len(layout.shapes)}", 8.0)
        return match(Layout(layout.shapes[:2]), [(1, "lines", 2), (1, "lines", _NUMBERS)])

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str]:
        return EXACT, f"{axes['lines'] or '?'} curves of {_NUMBERS} numbers"

    def decode(self, outputs: Sequence[Array], source_size: tuple[int, int]) -> Lanes:
        logits, curves = sorted(
            (output[0].astype(np.float64) for output in outputs[:2]), key=lambda rows: rows.shape[1]
        )
        scores = 1.0 / (1.0 + np.exp((logits[:, 0] - logits[:, 1]).clip(-700, 700)))
        found = []
        for curve, score in zip(curves, scores, strict=True):
            if score < self.score_threshold:
                continue
            x, y = _points(curve)
            size = self.preprocess.width, self.preprocess.height
            points, inside = in_source(x * size[0], y * size[1], self.preprocess, source_size)
            if inside.sum() >= _MIN_POINTS:
                found.append((points[inside], float(score)))
        return lanes_of_points(found, source_size, self.max_detections)


def _points(curve: Floats) -> tuple[Floats, Floats]:
    """x and y of the points of a curve (8,), from the bottom up, without those at its pole."""
    first, last, k, f, m, n, b, c = curve.clip(-1e6, 1e6)
    y = np.linspace(max(first, last), min(first, last), _POINTS)
    y = y[np.abs(y - f) > 1e-9]
    away = y - f
    return k / away**2 + m / away + n + b * y - c, y


#: Number of positions of a line; the first is at the bottom of the image, the last at the top.
_POSITIONS = 72
#: Number of values before them: two logits, start y, start x, angle, length.
_HEADER = 6
#: Input of the published networks, width and height.
_SIZE = (800, 320)
#: Two lines are the same if their mean distance over shared strips is below this, in pixels of an input 800 wide.
_MIN_DISTANCE = 50.0


class ClrNetDecoder(Decoder):
    """(1, candidates, 78): logits of "none" and "lane", start y, start x, angle, length, 72 columns -> Lanes.

    Columns are shares of the width, at 72 equal steps from the bottom of the image to its top. A line starts at strip
    start y * 71 and has length * 71 positions; below its start it continues while its columns stay inside the image. Of
    two lines that are less than 50 pixels of 800 apart on average, the one with the lower score is dropped
    (arXiv:2203.10350, github.com/Turoad/CLRNet, clr_head.py). The score is the softmax of the two logits;
    `iou_threshold` has no effect.

    The input of the published networks is the image without its uppermost part, 270 of 590 rows for CULane, 160 of 720
    for TuSimple, which parameter `crop` must exclude. The results are in pixels of the crop.
    """

    name = "clrnet"
    signature = "(1, candidates, 78): 2 logits, start y, start x, angle, length, 72 columns (CLRNet)"
    patterns = ((1, "candidates", _HEADER + _POSITIONS),)
    result_kind = "lanes"
    default_labels = ("lane",)

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str] | Difference:
        count = axes["candidates"]
        # 73 classes of YOLO would have thousands of rows.
        if count > 1000:
            return Difference(f"{count} candidates; allowed: at most 1000", 1.0)
        known = count == 192 and layout.size == _SIZE and layout.classes <= 1
        return EXACT if known else LIKELY, f"{count or '?'} lines of {_POSITIONS} positions"

    def decode(self, outputs: Sequence[Array], source_size: tuple[int, int]) -> Lanes:
        rows = outputs[0][0].astype(np.float64)
        scores = 1.0 / (1.0 + np.exp((rows[:, 0] - rows[:, 1]).clip(-700, 700)))
        chosen = np.flatnonzero(scores >= self.score_threshold)
        chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
        rows, scores = rows[chosen], scores[chosen]
        kept = _distinct(rows, self.max_detections)
        found = []
        y = np.linspace(1.0, 0.0, _POSITIONS) * self.preprocess.height
        for row, score in zip(rows[kept], scores[kept], strict=True):
            x = row[_HEADER:]
            on = _on_line(row)
            points, inside = in_source(x[on] * self.preprocess.width, y[on], self.preprocess, source_size)
            if inside.sum() >= _MIN_POINTS:
                found.append((points[inside], float(score)))
        return lanes_of_points(found, source_size, self.max_detections)


def _distinct(rows: Floats, max_lines: int) -> list[int]:
    """Indices of at most `max_lines` rows, best first, none of which is close to an earlier one. rows: best first."""
    strips = _POSITIONS - 1
    length = (rows[:, 5] * strips).clip(-1e6, 1e6)
    start = np.trunc((rows[:, 2] * strips).clip(-1e6, 1e6) + 0.5)
    end = np.trunc(start + length - 1 + 0.5 - (length < 1))  # rounded as in the reference's CUDA kernel
    first, last = start.clip(min=0), end.clip(max=strips)
    x = rows[:, _HEADER:].clip(-1e6, 1e6) * (_SIZE[0] - 1)
    position = np.arange(_POSITIONS)
    left = list(range(len(rows)))
    kept: list[int] = []
    while left and len(kept) < max_lines:
        best, *others = left
        kept.append(best)
        if not others:
            break
        other = np.array(others)
        begin, stop = np.maximum(first[best], first[other]), np.minimum(last[best], last[other])
        shared = (position >= begin[:, None]) & (position <= stop[:, None])
        count = stop - begin + 1
        total = (np.abs(x[other] - x[best]) * shared).sum(axis=1)
        same = (count > 0) & (total < _MIN_DISTANCE * count)
        left = other[~same].tolist()
    return kept


def _on_line(row: Floats) -> npt.NDArray[np.bool_]:
    """Which of the positions belong to the line. row: (78,)."""
    strips = _POSITIONS - 1
    x = row[_HEADER:]
    start = int(np.rint(row[2] * strips).clip(0, strips))
    length = int(np.rint(row[5] * strips).clip(-1e6, 1e6))
    end = min(start + length - 1, strips)
    position = np.arange(_POSITIONS)
    # Below its start the line continues to the bottom of the image, or until it leaves the image.
    outside = np.flatnonzero((x[:start] < 0.0) | (x[:start] > 1.0))
    begin = int(outside[-1]) + 1 if len(outside) else 0
    on: npt.NDArray[np.bool_] = (position >= begin) & (position <= end) & (x >= 0.0) & (x <= 1.0)
    return on


# sample/tusimple.py and test/images.py of the repository: OpenCV's image, blue first, stretched; db/tusimple.py.
_LSTR_COLORS = {"mean": (0.40789654, 0.44719302, 0.47026115), "std": (0.28863828, 0.27408164, 0.27809835)}
SPEC = DecoderSpec.of(LstrDecoder, preprocess={"bgr": True, **_LSTR_COLORS})
CLRNET = DecoderSpec.of(ClrNetDecoder, preprocess={"bgr": True})
