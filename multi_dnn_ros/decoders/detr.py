"""DETR of Hugging Face: logits and boxes, the last class is "no object"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from multi_dnn_ros.decoders.layout import (
    LIKELY,
    POSSIBLE,
    Difference,
    Layout,
    Match,
    Pattern,
    match_classes,
)
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import Floats, Integers, RowDecoder, Rows, from_shares
from multi_dnn_ros.decoders.rtdetr import MAX_QUERIES

#: Number of queries of DETR; its successors have more, and no class for "no object".
_QUERIES = 100
_BOXES: Pattern = (1, "queries", 4)


class DetrDecoder(RowDecoder):
    """Logits (1, queries, classes + 1), the last for "no object", and boxes (1, queries, 4): cx, cy, w, h as shares of
    the input.

    Score = softmax over the classes; one box per query, of its best class, without non-maximum suppression
    (arXiv:2005.12872). If both outputs have 4 columns, the first one has the logits.
    """

    name = "detr"
    signature = "(1, queries, classes + 1) and (1, queries, 4)"
    patterns: ClassVar[tuple[Pattern, ...]] = ((1, "queries", ("classes", 1)), _BOXES)
    suppress: ClassVar[bool] = False

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match_classes(layout, cls.patterns)
        if isinstance(found, Difference):
            return found
        queries, classes = found.axes.get("queries", 0), found.axes.get("classes", 0)
        if queries > MAX_QUERIES:
            return Difference(f"{queries} rows; allowed: up to {MAX_QUERIES} queries", 0.9)
        return Match(*cls.certainty(queries, layout.classes), classes)

    @classmethod
    def certainty(cls, queries: int, classes: int) -> tuple[int, str]:
        """Certainty and reason for outputs that fit. classes: number of known class names; 0: unknown."""
        if classes:
            return LIKELY, f"{classes} class names and one logit more"
        return (LIKELY if queries == _QUERIES else POSSIBLE), f"logits and boxes of {queries or '?'} queries"

    def rows(self, outputs: Sequence[Tensor]) -> Rows:
        logits, boxes = self.split(outputs)
        return Rows(boxes, logits.softmax(dim=1)[:, :-1])

    def split(self, outputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(queries, columns) logits and (queries, 4) boxes of checked outputs."""
        swapped = outputs[1].shape[2] != 4
        return outputs[int(swapped)][0], outputs[1 - int(swapped)][0]

    def corners(self, raw: Floats, index: Integers) -> Floats:
        return from_shares(raw, self.preprocess)


SPEC = DecoderSpec(
    "detr",
    DetrDecoder,
    signature='(1, queries, classes + 1) logits with "no object" last, (1, queries, 4) boxes (DETR of Hugging Face)',
    preprocess={"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
    recognize=DetrDecoder.recognize,
)
