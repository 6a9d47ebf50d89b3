"""Boxes of Ultralytics' segmentation exports; their masks are not used."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from multi_dnn_ros.decoders.layout import (
    EXACT,
    LIKELY,
    Difference,
    Layout,
    Match,
    match_classes,
    strides_of,
)
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import Floats, Integers, RowDecoder, Rows, from_centers

#: Number of mask coefficients after the classes.
COEFFICIENTS = 32


class YoloMasksDecoder(RowDecoder):
    """(1, 4 + classes + 32, N) and (1, 32, h, w): as decoder yolo, with 32 mask coefficients per row, and the masks'
    prototypes.

    Only the boxes are reported; decoder yolo_instances reports the masks too.
    """

    name = "yolo_masks"
    signature = "(1, 36 + classes, N) and (1, 32, h, w)"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match_classes(layout, [(1, ("classes", 4 + COEFFICIENTS), "N"), (1, COEFFICIENTS, "h", "w")])
        if isinstance(found, Difference):
            return found
        count, classes = found.axes.get("N", 0), found.axes.get("classes", 0)
        certainty = EXACT if strides_of(layout.size, count) else LIKELY
        return Match(certainty, f"boxes, {classes or '?'} classes and {COEFFICIENTS} mask coefficients", classes)

    def rows(self, outputs: Sequence[Tensor]) -> Rows:
        (columns,) = (output[0] for output in outputs if output.ndim == 3)
        rows = columns.T
        return Rows(rows[:, :4], rows[:, 4:-COEFFICIENTS])

    def corners(self, raw: Floats, index: Integers) -> Floats:
        return from_centers(raw)


SPEC = DecoderSpec(
    "yolo_masks",
    YoloMasksDecoder,
    signature="(1, 36 + classes, N), (1, 32, h, w): boxes of segmentation exports (YOLOv8-seg, 11-seg)",
    preprocess={"fit": "letterbox"},
    recognize=YoloMasksDecoder.recognize,
)
