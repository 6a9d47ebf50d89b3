"""RT-DETR as Ultralytics exports it: boxes and class probabilities in one output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from multi_dnn_ros.decoders.layout import LIKELY, POSSIBLE, Difference, Layout, Match, match_classes
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import Floats, Integers, RowDecoder, Rows, from_shares

#: Maximum number of queries of a transformer detector; more rows are anchor points.
MAX_QUERIES = 1000


class RtDetrDecoder(RowDecoder):
    """(1, queries, 4 + classes): cx, cy, w, h as shares of the input, a probability per class.

    One box per query, of its best class, without non-maximum suppression (arXiv:2304.08069).
    """

    name = "rtdetr"
    signature = "(1, queries, 4 + classes)"
    suppress: ClassVar[bool] = False

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match_classes(layout, [(1, "queries", ("classes", 4))])
        if isinstance(found, Difference):
            return found
        queries, classes = found.axes.get("queries", 0), found.axes.get("classes", 0)
        if queries > MAX_QUERIES:
            return Difference(f"{queries} rows; allowed: up to {MAX_QUERIES} queries", 0.9)
        # Rows of 6 numbers are more probably box, score and class. More classes than queries: probably a transposed
        # output.
        certainty = LIKELY if queries and 2 < classes <= queries else POSSIBLE
        return Match(certainty, f"{queries or '?'} rows of 4 numbers and {classes or '?'} classes", classes)

    def rows(self, outputs: Sequence[Tensor]) -> Rows:
        rows = outputs[0][0]
        return Rows(rows[:, :4], rows[:, 4:])

    def corners(self, raw: Floats, index: Integers) -> Floats:
        return from_shares(raw, self.preprocess)


SPEC = DecoderSpec(
    "rtdetr",
    RtDetrDecoder,
    signature="(1, queries, 4 + classes): box as shares of the input, classes (RT-DETR by Ultralytics)",
    recognize=RtDetrDecoder.recognize,
)
