"""Networks that return lane lines as curves (LSTR) or as positions per strip of the image (CLRNet)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.decoders.arrays import Floats as Array
from multi_dnn_ros.decoders.base import Decoder
from multi_dnn_ros.decoders.layout import EXACT, LIKELY, Difference, Layout, Match, match
from multi_dnn_ros.decoders.point_lanes import Floats, clipped, in_source, inside, lanes_of_points
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.results import Lanes

#: Points per line.
_POINTS = 48
#: Numbers of a curve: its two ends, then the coefficients.
_NUMBERS = 8
#: Minimum number of points of a lane.
_MIN_POINTS = 2
#: Number of outputs of the public exports: logits and curves; or also those of the layer before the last, and attention
#: weights.
_COUNTS = (2, 5)


class LstrDecoder(Decoder):
    """(1, lines, 2) logits of "none" and "lane", (1, lines, 8) curves -> Lanes; later outputs are not read.

    A curve has its two ends y0 and y1, then k, f, m, n, b, c: x = k / (y - f)^2 + m / (y - f) + n + b y - c, all as
    shares of the image (arXiv:2011.04233, github.com/liuruijin17/LSTR). The score is the softmax of the two logits;
    `iou_threshold` has no effect, as each line is found once.
    """

    name = "lstr"
    signature = "(1, lines, 2), (1, lines, 8)"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        if len(layout.shapes) not in _COUNTS:
            return Difference(f"{_COUNTS[0]} or {_COUNTS[1]} outputs expected, found {len(layout.shapes)}", 8.0)
        found = match(Layout(layout.shapes[:2]), [(1, "lines", 2), (1, "lines", _NUMBERS)])
        if isinstance(found, Difference):
            return found
        return Match(EXACT, f"{found.axes.get('lines') or '?'} curves of {_NUMBERS} numbers")

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
            u, v = in_source(x * self.preprocess.width, y * self.preprocess.height, self.preprocess, source_size)
            seen = inside(u, v, source_size)
            points = np.stack([u[seen], v[seen]], axis=1)
            if len(points) >= _MIN_POINTS:
                found.append((clipped(points, source_size), float(score)))
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
#: Minimum number of points of a lane.


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
    signature = "(1, candidates, 78)"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match(layout, [(1, "candidates", _HEADER + _POSITIONS)])
        if isinstance(found, Difference):
            return found
        count = found.axes.get("candidates", 0)
        # 73 classes of YOLO would have thousands of rows.
        if count > 1000:
            return Difference(f"{count} candidates; allowed: at most 1000", 1.0)
        known = count == 192 and layout.size == _SIZE and layout.classes <= 1
        return Match(EXACT if known else LIKELY, f"{count or '?'} lines of {_POSITIONS} positions")

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
            u, v = in_source(x[on] * self.preprocess.width, y[on], self.preprocess, source_size)
            seen = inside(u, v, source_size)
            points = np.stack([u[seen], v[seen]], axis=1)
            if len(points) >= _MIN_POINTS:
                found.append((clipped(points, source_size), float(score)))
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


SPEC = DecoderSpec.of(
    LstrDecoder,
    "(1, lines, 2) logits, (1, lines, 8) curves; three further outputs are not read (LSTR)",
    result_kind="lanes",
    default_labels=("lane",),
    # sample/tusimple.py and test/images.py of the repository: OpenCV's image, blue first, stretched; mean and deviation
    # of db/tusimple.py.
    preprocess={
        "bgr": True,
        "mean": (0.40789654, 0.44719302, 0.47026115),
        "std": (0.28863828, 0.27408164, 0.27809835),
    },
)
CLRNET = DecoderSpec.of(
    ClrNetDecoder,
    "(1, candidates, 78): 2 logits, start y, start x, angle, length, 72 columns (CLRNet)",
    result_kind="lanes",
    default_labels=("lane",),
    preprocess={"bgr": True},
)
