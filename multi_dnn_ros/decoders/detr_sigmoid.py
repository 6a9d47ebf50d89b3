"""The DETR family with a sigmoid per class: RT-DETR, D-FINE, Deformable and Conditional DETR of Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor

from multi_dnn_ros.decoders.base import LIMIT, TwoParts
from multi_dnn_ros.decoders.detr import DetrDecoder
from multi_dnn_ros.decoders.layout import LIKELY, POSSIBLE, Pattern
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import report_ranked
from multi_dnn_ros.vision.results import Detections


class DetrSigmoidDecoder(DetrDecoder):
    """Logits (1, queries, classes) and boxes (1, queries, 4): cx, cy, w, h as shares of the input.

    Score = sigmoid; a query may report several classes. The best detections are kept, as many as there are queries,
    without non-maximum suppression (post_process_object_detection of the image processors).
    """

    name = "detr_sigmoid"
    signature = "(1, queries, classes) and (1, queries, 4)"
    patterns: ClassVar[tuple[Pattern, ...]] = ((1, "queries", "classes"), (1, "queries", 4))

    @classmethod
    def certainty(cls, queries: int, classes: int) -> tuple[int, str]:
        if classes:
            return LIKELY, f"{classes} class names and as many logits"
        return (LIKELY if queries > 100 else POSSIBLE), f"logits and boxes of {queries or '?'} queries"

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Detections:
        logits, boxes = (part.numpy() for part in self.split(outputs))
        threshold = min(max(self.score_threshold, 1e-6), 1.0 - 1e-6)
        query, class_ids = np.nonzero(logits >= np.log(threshold / (1.0 - threshold)))
        values = logits[query, class_ids]
        if len(values) > len(logits):
            best = np.argsort(-values, kind="stable")[: len(logits)]
            query, class_ids, values = query[best], class_ids[best], values[best]
        # In float64, exp does not overflow for any float32 logit over the threshold.
        scores = (1.0 / (1.0 + np.exp(-values.astype(np.float64)))).astype(np.float32)
        return report_ranked(
            self, self.corners(boxes[query].clip(-LIMIT, LIMIT), query), scores, class_ids, source_size
        )

    def in_two_parts(self) -> TwoParts | None:
        return None


SPEC = DecoderSpec(
    "detr_sigmoid",
    DetrSigmoidDecoder,
    signature="(1, queries, classes) logits, (1, queries, 4) boxes (RT-DETR, D-FINE of Hugging Face)",
    recognize=DetrSigmoidDecoder.recognize,
)
