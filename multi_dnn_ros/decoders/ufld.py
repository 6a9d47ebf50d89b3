"""Ultra Fast Lane Detection, version 1: for each of a few rows of the image, the cell that a lane passes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from multi_dnn_ros.decoders.layout import EXACT, LIKELY, Difference, Layout, Match, match
from multi_dnn_ros.decoders.point_lanes import in_source, lanes_of_points
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import RecognizedDecoder
from multi_dnn_ros.vision.results import Lanes

_LANES = 4
#: Positions of the rows by the number of rows, in pixels of an input of 800 x 288: those of the evaluation protocols of
#: TuSimple and CULane.
_ROWS: Mapping[int, tuple[int, ...]] = {
    56: tuple(range(64, 288, 4)),
    18: (121, 131, 141, 150, 160, 170, 180, 189, 199, 209, 219, 228, 238, 248, 258, 267, 277, 287),
}
_SIZE = (800, 288)
#: Minimum number of rows of a lane.
_MIN_ROWS = 3


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
        position = (np.arange(1, cells + 1)[:, None, None] * within).sum(axis=0) / within.sum(axis=0)
        exists = logits.argmax(axis=0) != cells
        probability = 1.0 - powers[-1] / powers.sum(axis=0)
        across = (_SIZE[0] - 1) / max(cells - 1, 1)
        x = (position * across - 1.0) * (self.preprocess.width / _SIZE[0])
        y = np.array(_ROWS[count], np.float64) * (self.preprocess.height / _SIZE[1]) - 1.0
        u, v = in_source(x, y, self.preprocess, source_size)
        inside = exists & (u >= 0) & (u <= width - 1) & ((v >= 0) & (v <= height - 1))[:, None]
        found = []
        for lane in range(_LANES):
            rows = np.flatnonzero(inside[:, lane])[::-1]  # from the bottom up
            if len(rows) < _MIN_ROWS or (score := float(probability[rows, lane].mean())) < self.score_threshold:
                continue
            points = np.stack([u[rows, lane], v[rows]], axis=1)
            found.append((points, score))
        return lanes_of_points(found, source_size, self.max_detections)


SPEC = DecoderSpec(
    "ufld",
    UfldDecoder,
    signature="(1, cells + 1, 56 or 18, 4) logits per row and lane (UFLD v1 for TuSimple, CULane)",
    result_kind="lanes",
    default_labels=("lane",),
    preprocess={"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    recognize=UfldDecoder.recognize,
)
