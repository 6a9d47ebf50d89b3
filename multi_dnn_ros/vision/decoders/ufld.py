"""Ultra Fast Lane Detection, version 1: for each of a few rows of the image, the cell that a lane passes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2
import numpy as np
import numpy.typing as npt
from torch import Tensor

from multi_dnn_ros.vision.decoders.layout import EXACT, LIKELY, Difference, Layout, Match, match
from multi_dnn_ros.vision.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.decoders.rows import RecognizedDecoder
from multi_dnn_ros.vision.results import Lane, Lanes

_LANES = 4
#: Positions of the rows by their number, in pixels of an input of 800 x 288: those of the evaluation protocols of
#: TuSimple and CULane.
_ROWS: Mapping[int, tuple[int, ...]] = {
    56: tuple(range(64, 288, 4)),
    18: (121, 131, 141, 150, 160, 170, 180, 189, 199, 209, 219, 228, 238, 248, 258, 267, 277, 287),
}
_SIZE = (800, 288)
#: Minimum number of rows of a lane.
_FEWEST = 3
#: Width of the mask of lane numbers.
_MASK_WIDTH = 320

Floats = npt.NDArray[np.float64]


class UfldDecoder(RecognizedDecoder):
    """(1, cells + 1, rows, 4) logits -> Lanes. rows: 56 (TuSimple) or 18 (CULane), from the top.

    For each lane and row, the last class is "no lane here". If it is not the largest, the column is the expectation of
    the cell's number, 1 to `cells`, under a softmax over the cells (arXiv:2004.11757). A lane has at least 3 rows; its
    score is the mean over these rows of the probability of a lane, and must reach `score_threshold`.
    """

    name = "ufld"
    signature = "(1, cells + 1, 56 or 18, 4)"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match(layout, [(1, ("cells", 1), "rows", _LANES)])
        if isinstance(found, Difference):
            return found
        rows = found.axes.get("rows", 0)
        if rows not in _ROWS:
            return Difference(f"{rows or '?'} rows; allowed: 56 (TuSimple), 18 (CULane)", 1.0)
        return Match(EXACT if layout.size == _SIZE else LIKELY, f"4 lanes in {rows} rows of cells")

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Lanes:
        logits = outputs[0][0].double().numpy()
        cells, (count, height, width) = len(logits) - 1, (logits.shape[1], *source_size)
        powers = np.exp(logits - logits.max(axis=0))
        within = np.exp(logits[:-1] - logits[:-1].max(axis=0))
        place = (np.arange(1, cells + 1)[:, None, None] * within).sum(axis=0) / within.sum(axis=0)
        there = logits.argmax(axis=0) != cells
        certainty = 1.0 - powers[-1] / powers.sum(axis=0)
        across = (_SIZE[0] - 1) / max(cells - 1, 1)
        x = (place * across - 1.0) * (self.preprocess.width / _SIZE[0])
        y = np.array(_ROWS[count], np.float64) * (self.preprocess.height / _SIZE[1]) - 1.0
        geometry = self.preprocess.geometry(source_size)
        u, v = (x - geometry.left) / geometry.scale_x, (y - geometry.top) / geometry.scale_y
        inside = there & (u >= 0) & (u <= width - 1) & ((v >= 0) & (v <= height - 1))[:, None]
        found = []
        for lane in range(_LANES):
            rows = np.flatnonzero(inside[:, lane])[::-1]  # from the bottom up
            if len(rows) < _FEWEST or (score := float(certainty[rows, lane].mean())) < self.score_threshold:
                continue
            points = np.stack([u[rows, lane], v[rows]], axis=1)
            found.append((points, _fitted(points), score))
        found = sorted(found, key=lambda one: -one[2])[: self.max_detections]
        found.sort(key=lambda one: float(np.polyval(one[1][::-1], height - 1)))
        lanes = tuple(
            Lane(number, points.astype(np.float32), curve, score)
            for number, (points, curve, score) in enumerate(found, start=1)
        )
        return Lanes(_numbers(lanes, source_size), lanes, source_size)


def _fitted(points: Floats) -> Floats:
    """c0, c1, c2 of u = c0 + c1 v + c2 v^2 by least squares. points: (K, 2) u, v, K >= 3."""
    u, v = points.T
    middle, span = v.mean(), max(np.ptp(v), 1.0)
    t = (v - middle) / span
    a, b, c = np.linalg.lstsq(np.stack([np.ones_like(t), t, t * t], axis=1), u, rcond=None)[0]
    b, c = b / span, c / span**2
    return np.array([a - b * middle + c * middle**2, b - 2.0 * c * middle, c])


def _numbers(lanes: Sequence[Lane], source_size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    height, width = source_size
    size = (min(_MASK_WIDTH, width), max(1, round(min(_MASK_WIDTH, width) * height / width)))
    numbers = np.zeros((size[1], size[0]), np.uint8)
    scale = np.array([size[0] / width, size[1] / height])
    for lane in lanes:
        points = np.floor(lane.points * scale).astype(np.int32)
        cv2.polylines(numbers, [points], False, lane.number, 2)
    return numbers


SPEC = DecoderSpec(
    "ufld",
    UfldDecoder,
    signature="(1, cells + 1, 56 or 18, 4) logits per row and lane (UFLD v1 for TuSimple, CULane)",
    result_kind="lanes",
    default_labels=("lane",),
    preprocess={"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    recognize=UfldDecoder.recognize,
)
