"""Detectors with queries, or with their own selection of boxes: no duplicates are left to suppress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from multi_dnn_ros.decoders.base import IMAGENET, LIMIT, Decoder, Floats, Integers, Values, softmax
from multi_dnn_ros.decoders.layout import EXACT, LIKELY, POSSIBLE, Bound, Difference, Layout, Pattern, match_any
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import RowDecoder, Rows, from_shares
from multi_dnn_ros.decoders.yolo import EndToEndDecoder
from multi_dnn_ros.vision.results import Detections, OutputError

#: Maximum number of queries of a transformer detector; more rows are anchor points.
MAX_QUERIES = 1000
#: Number of queries of DETR; its successors have more, and no class for "no object".
_QUERIES = 100


class _QueryDecoder(RowDecoder):
    """Boxes cx, cy, w, h as shares of the input, one per query."""

    suppressed: ClassVar[bool] = False

    @classmethod
    def matches(cls, layout: Layout) -> Bound | Difference:
        found = super().matches(layout)
        if isinstance(found, Bound) and found.axes["queries"] > MAX_QUERIES:
            return Difference(f"{found.axes['queries']} rows; allowed: up to {MAX_QUERIES} queries", 0.9)
        return found

    def corners(self, raw: Floats, index: Integers) -> Floats:
        return from_shares(raw, self.preprocess)


class RtDetrDecoder(_QueryDecoder):
    """(1, queries, 4 + classes): cx, cy, w, h as shares of the input, a probability per class.

    RT-DETR as Ultralytics exports it: one box per query, of its best class (arXiv:2304.08069).
    """

    name = "rtdetr"
    signature = "(1, queries, 4 + classes): box as shares of the input, classes (RT-DETR by Ultralytics)"
    patterns = ((1, "queries", ("classes", 4)),)

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str]:
        queries, classes = axes["queries"], axes["classes"]
        # Rows of 6 numbers are more probably box, score and class. More classes than queries: probably a transposed
        # output.
        certainty = LIKELY if queries and 2 < classes <= queries else POSSIBLE
        return certainty, f"{queries or '?'} rows of 4 numbers and {classes or '?'} classes"

    def rows(self, outputs: Sequence[Values]) -> Rows:
        rows = outputs[0][0]
        return Rows(rows[:, :4], rows[:, 4:])


def _logits_and_boxes(outputs: Sequence[Values]) -> tuple[Values, Values]:
    """(queries, columns) logits and (queries, 4) boxes. If both have 4 columns, the first one has the logits."""
    swapped = outputs[1].shape[2] != 4
    return outputs[int(swapped)][0], outputs[1 - int(swapped)][0]


class DetrDecoder(_QueryDecoder):
    """Logits (1, queries, classes + 1), the last for "no object", and boxes (1, queries, 4): cx, cy, w, h as shares of
    the input.

    DETR of Hugging Face: score = softmax over the classes; one box per query, of its best class (arXiv:2005.12872).
    """

    name = "detr"
    signature = '(1, queries, classes + 1) logits with "no object" last, (1, queries, 4) boxes (DETR of Hugging Face)'
    patterns = ((1, "queries", ("classes", 1)), (1, "queries", 4))

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str]:
        if layout.classes:
            return LIKELY, f"{layout.classes} class names and one logit more"
        certainty = LIKELY if axes["queries"] == _QUERIES else POSSIBLE
        return certainty, f"logits and boxes of {axes['queries'] or '?'} queries"

    def rows(self, outputs: Sequence[Values]) -> Rows:
        logits, boxes = _logits_and_boxes(outputs)
        return Rows(boxes, softmax(logits)[:, :-1])


class DetrSigmoidDecoder(Decoder):
    """Logits (1, queries, classes) and boxes (1, queries, 4): cx, cy, w, h as shares of the input.

    RT-DETR, D-FINE, Deformable and Conditional DETR of Hugging Face: score = sigmoid; a query may report several
    classes. The best detections are kept, as many as there are queries (post_process_object_detection of the image
    processors).
    """

    name = "detr_sigmoid"
    signature = "(1, queries, classes) logits, (1, queries, 4) boxes (RT-DETR, D-FINE of Hugging Face)"
    patterns = ((1, "queries", "classes"), (1, "queries", 4))

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str] | Difference:
        if axes["queries"] > MAX_QUERIES:
            return Difference(f"{axes['queries']} rows; allowed: up to {MAX_QUERIES} queries", 0.9)
        if layout.classes:
            return LIKELY, f"{layout.classes} class names and as many logits"
        certainty = LIKELY if axes["queries"] > _QUERIES else POSSIBLE
        return certainty, f"logits and boxes of {axes['queries'] or '?'} queries"

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Detections:
        logits, boxes = _logits_and_boxes(outputs)
        threshold = min(max(self.score_threshold, 1e-6), 1.0 - 1e-6)
        query, class_ids = np.nonzero(logits >= np.log(threshold / (1.0 - threshold)))
        values = logits[query, class_ids]
        best = np.argsort(-values, kind="stable")[: len(logits)]
        query, class_ids, values = query[best], class_ids[best], values[best]
        # In float64, exp does not overflow for any float32 logit over the threshold.
        scores = (1.0 / (1.0 + np.exp(-values.astype(np.float64)))).astype(np.float32)
        corners = from_shares(boxes[query].clip(-LIMIT, LIMIT), self.preprocess)
        return self.select(corners, scores, class_ids, source_size, suppressed=False)


class RtDetrSelectedDecoder(EndToEndDecoder):
    """(1, queries, 6): cx, cy, w, h as shares of the input, score, class.

    RT-DETR as Ultralytics exports it since May 2026 (github.com/ultralytics/ultralytics/pull/24403). The shape is that
    of `end_to_end`, so only the metadata of the file tells them apart.
    """

    name = "rtdetr_selected"
    signature = "(1, queries, 6): box as shares of the input, score, class (RT-DETR by Ultralytics since May 2026)"

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str]:
        return POSSIBLE, "rows of 6 numbers, if the first four are shares of the input"

    def corners(self, rows: Floats) -> Floats:
        return from_shares(rows, self.preprocess)


class PostprocessedDecoder(Decoder):
    """Labels (1, N), boxes (1, N, 4) x1, y1, x2, y2 in input pixels and scores (1, N), in any order.

    Variants: without the axis of length 1, as torchvision exports them, and with boxes and scores in one output
    (1, N, 5), as mmdeploy does. RT-DETR and D-FINE (github.com/lyuwenyu/RT-DETR, github.com/Peterande/D-FINE) give such
    outputs if their second input, orig_target_sizes, is fixed to the input size. Labels are whole numbers and scores
    are not; if that does not distinguish them, the labels come first.
    """

    name = "postprocessed"
    signature = (
        "labels (1, N), boxes (1, N, 4) in input pixels, scores (1, N); or boxes with scores (1, N, 5), labels "
        "(RT-DETR, D-FINE, torchvision, mmdeploy)"
    )
    variants: ClassVar[Sequence[Sequence[Pattern]]] = (
        ((1, "N"), (1, "N", 4), (1, "N")),
        (("N",), ("N", 4), ("N",)),
        ((1, "N"), (1, "N", 5)),
    )

    @classmethod
    def matches(cls, layout: Layout) -> Bound | Difference:
        return match_any(layout, cls.variants)

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str]:
        if len(layout.shapes) == 2:
            return LIKELY, "boxes with scores, and labels"
        return EXACT, "labels, boxes and scores"

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Detections:
        if len(outputs) == 2:
            labels, found = outputs if outputs[1].ndim == 3 else outputs[::-1]
            boxes, scores = found[0, :, :4], found[0, :, 4]
        else:
            # With 4 boxes, labels and scores also have a last axis of length 4, but fewer axes.
            position = max(range(3), key=lambda index: outputs[index].ndim)
            boxes = outputs[position].reshape(-1, 4)
            first, second = (output for index, output in enumerate(outputs) if index != position)
            labels, scores = (second, first) if _is_integral(second) and not _is_integral(first) else (first, second)
        labels, scores = labels.reshape(-1), scores.reshape(-1)
        if not _is_integral(labels):
            raise OutputError("decoder postprocessed: no output other than the boxes holds whole numbers")
        boxes = boxes.clip(-LIMIT, LIMIT)
        return self.select(boxes, scores, labels.astype(np.int64), source_size, suppressed=False)


def _is_integral(values: Floats) -> bool:
    return bool((values == np.round(values)).all())


SPEC = DecoderSpec.of(DetrDecoder, preprocess=IMAGENET)
SIGMOID = DecoderSpec.of(DetrSigmoidDecoder)
RTDETR = DecoderSpec.of(RtDetrDecoder)
RTDETR_SELECTED = DecoderSpec.of(RtDetrSelectedDecoder)
POSTPROCESSED = DecoderSpec.of(PostprocessedDecoder)
