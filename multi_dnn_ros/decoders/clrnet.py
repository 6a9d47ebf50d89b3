"""CLRNet: lane lines as candidates with one position per strip of the image, suppressed by their distance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from multi_dnn_ros.decoders.layout import EXACT, LIKELY, Difference, Layout, Match, match
from multi_dnn_ros.decoders.point_lanes import Floats, clipped, in_source, inside, lanes_of_points
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import RecognizedDecoder
from multi_dnn_ros.vision.results import Lanes

#: Number of positions of a line; the first is at the bottom of the image, the last at the top.
_POSITIONS = 72
#: Number of values before them: two logits, start y, start x, angle, length.
_HEADER = 6
#: Input of the published networks, width and height.
_SIZE = (800, 320)
#: Two lines are the same if their mean distance over shared strips is below this, in pixels of an input 800 wide.
_MIN_DISTANCE = 50.0
#: Minimum number of points of a lane.
_MIN_POINTS = 2


class ClrNetDecoder(RecognizedDecoder):
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

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Lanes:
        rows = outputs[0][0].double().numpy()
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


SPEC = DecoderSpec(
    "clrnet",
    ClrNetDecoder,
    signature="(1, candidates, 78): 2 logits, start y, start x, angle, length, 72 columns (CLRNet)",
    result_kind="lanes",
    default_labels=("lane",),
    preprocess={"bgr": True},
    recognize=ClrNetDecoder.recognize,
)
