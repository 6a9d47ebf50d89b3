"""CLRNet: lane lines as candidates with one place per strip of the image, suppressed by their distance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from multi_dnn_ros.vision.decoders.layout import EXACT, LIKELY, Difference, Layout, Match, match
from multi_dnn_ros.vision.decoders.point_lanes import Floats, clipped, in_source, inside, lanes_of_points
from multi_dnn_ros.vision.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.decoders.rows import RecognizedDecoder
from multi_dnn_ros.vision.results import Lanes

#: Places of a line; the first is at the bottom of the image, the last at the top.
_PLACES = 72
#: Before them: two logits, start y, start x, angle, length.
_BEFORE = 6
#: Input of the published networks, width and height.
_SIZE = (800, 320)
#: Mean distance in pixels of an input 800 wide, over the strips that two lines share, below which they are the same.
_LEAST_DISTANCE = 50.0
#: Minimum number of points of a lane.
_FEWEST = 2


class ClrNetDecoder(RecognizedDecoder):
    """(1, candidates, 78): logits of none and lane, start y, start x, angle, length, 72 columns -> Lanes.

    Columns are shares of the width, at 72 equal steps from the bottom of the image to its top. A line starts at strip
    start y * 71 and has length * 71 places; below its start it continues while its columns stay inside the image. Of
    two lines that are less than 50 pixels of 800 apart on average, the one with the lower score is dropped
    (arXiv:2203.10350, github.com/Turoad/CLRNet, clr_head.py). The score is the softmax of the two logits;
    `iou_threshold` has no effect.

    The published networks see the image without its uppermost part, 270 of 590 rows for CULane, 160 of 720 for
    TuSimple. The results are in pixels of the part that it sees.
    """

    name = "clrnet"
    signature = "(1, candidates, 78)"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match(layout, [(1, "candidates", _BEFORE + _PLACES)])
        if isinstance(found, Difference):
            return found
        count = found.axes.get("candidates", 0)
        # 73 classes of YOLO would have thousands of rows.
        if count > 1000:
            return Difference(f"{count} candidates; allowed: at most 1000", 1.0)
        known = count == 192 and layout.size == _SIZE and layout.classes <= 1
        return Match(EXACT if known else LIKELY, f"{count or '?'} lines of {_PLACES} places")

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Lanes:
        rows = outputs[0][0].double().numpy()
        scores = 1.0 / (1.0 + np.exp((rows[:, 0] - rows[:, 1]).clip(-700, 700)))
        chosen = np.flatnonzero(scores >= self.score_threshold)
        chosen = chosen[np.argsort(-scores[chosen], kind="stable")]
        rows, scores = rows[chosen], scores[chosen]
        kept = _distinct(rows, self.max_detections)
        found = []
        y = np.linspace(1.0, 0.0, _PLACES) * self.preprocess.height
        for row, score in zip(rows[kept], scores[kept], strict=True):
            x = row[_BEFORE:]
            on = _on_line(row)
            u, v = in_source(x[on] * self.preprocess.width, y[on], self.preprocess, source_size)
            seen = inside(u, v, source_size)
            points = np.stack([u[seen], v[seen]], axis=1)
            if len(points) >= _FEWEST:
                found.append((clipped(points, source_size), float(score)))
        return lanes_of_points(found, source_size, self.max_detections)


def _distinct(rows: Floats, most: int) -> list[int]:
    """Indices of at most `most` rows, best first, none of which is close to one before it. rows: best first."""
    strips = _PLACES - 1
    length = (rows[:, 5] * strips).clip(-1e6, 1e6)
    start = np.trunc((rows[:, 2] * strips).clip(-1e6, 1e6) + 0.5)
    end = np.trunc(start + length - 1 + 0.5 - (length < 1))  # rounded as in the reference's CUDA kernel
    first, last = start.clip(min=0), end.clip(max=strips)
    x = rows[:, _BEFORE:].clip(-1e6, 1e6) * (_SIZE[0] - 1)
    place = np.arange(_PLACES)
    left = list(range(len(rows)))
    kept: list[int] = []
    while left and len(kept) < most:
        best, *others = left
        kept.append(best)
        if not others:
            break
        other = np.array(others)
        begin, stop = np.maximum(first[best], first[other]), np.minimum(last[best], last[other])
        shared = (place >= begin[:, None]) & (place <= stop[:, None])
        count = stop - begin + 1
        total = (np.abs(x[other] - x[best]) * shared).sum(axis=1)
        same = (count > 0) & (total < _LEAST_DISTANCE * count)
        left = other[~same].tolist()
    return kept


def _on_line(row: Floats) -> npt.NDArray[np.bool_]:
    """Which of the places belong to the line. row: (78,)."""
    strips = _PLACES - 1
    x = row[_BEFORE:]
    start = int(np.rint(row[2] * strips).clip(0, strips))
    length = int(np.rint(row[5] * strips).clip(-1e6, 1e6))
    end = min(start + length - 1, strips)
    place = np.arange(_PLACES)
    # Below its start the line goes on to the bottom of the image, or to the place where it leaves it.
    outside = np.flatnonzero((x[:start] < 0.0) | (x[:start] > 1.0))
    begin = int(outside[-1]) + 1 if len(outside) else 0
    on: npt.NDArray[np.bool_] = (place >= begin) & (place <= end) & (x >= 0.0) & (x <= 1.0)
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
