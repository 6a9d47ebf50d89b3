"""YOLO-style heads without objectness: one column of box and class probabilities per anchor point."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from multi_dnn_ros.decoders.layout import (
    EXACT,
    LIKELY,
    POSSIBLE,
    Difference,
    Layout,
    Match,
    check_classes,
    match,
    strides_of,
)
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import Floats, Integers, RowDecoder, Rows, from_centers
from multi_dnn_ros.vision.results import OutputError


class YoloDecoder(RowDecoder):
    """(1, 4 + classes, N): cx, cy, w, h in input pixels, then a probability per class, for N anchor points.

    The format of Ultralytics' exports since YOLOv8 (without built-in NMS) and of the built-in detectors.
    """

    name = "yolo"

    def check(self, outputs: Sequence[torch.Tensor]) -> None:
        self.expect_outputs(outputs, 1)
        shape = tuple(outputs[0].shape)
        rows = 4 + len(self.labels)
        if len(shape) == 3 and shape[0] == 1 and shape[1] == rows:
            return
        message = f"output of shape {shape}, but decoder yolo with {len(self.labels)} classes reads (1, {rows}, N)"
        if len(shape) == 3 and shape[2] == rows:
            message += "; it is transposed: export the DNN with the anchor points last"
        elif len(shape) == 3 and shape[2] > shape[1] > 4:
            message += f"; (1, {shape[1]}, N) has {shape[1] - 4} classes"
        raise OutputError(message)

    def rows(self, outputs: Sequence[torch.Tensor]) -> Rows:
        rows = outputs[0][0].T
        return Rows(rows[:, :4], rows[:, 4:])

    def corners(self, raw: Floats, index: Integers) -> Floats:
        return from_centers(raw)


def recognize(layout: Layout) -> Match | Difference:
    """Whether YoloDecoder reads such outputs: more anchor points than rows, ideally as many as the input has cells."""
    found = match(layout, [(1, ("classes", 4), "N")])
    if isinstance(found, Difference):
        return found
    count, classes = found.axes.get("N", 0), found.axes.get("classes", 0)
    strides = strides_of(layout.size, count)
    if strides is None and count and classes + 4 > count:
        distance = 0.3 if count - 4 == layout.classes else 1.5
        return Difference(f"{classes + 4} rows of {count} columns are probably transposed", distance)
    if (wrong := check_classes(layout, classes)) is not None:
        more = classes - layout.classes
        if more == 1 or (more > 0 and more % 3 == 0):
            return Difference(f"{wrong.text}: an export for rotated boxes (1 row more) or poses (3 per keypoint)?", 0.4)
        return wrong
    if strides is not None:
        return Match(EXACT, f"{count} columns are one per cell at strides {', '.join(map(str, strides))}", classes)
    if layout.classes and classes:
        return Match(LIKELY, f"4 rows more than the {classes} class names", classes)
    return Match(LIKELY if count > 1000 else POSSIBLE, "fewer rows than columns", classes)


SPEC = DecoderSpec(
    "yolo",
    YoloDecoder,
    signature="(1, 4 + classes, N)",
    preprocess={"fit": "letterbox"},  # as Ultralytics trains
    loss="multi_dnn_ros.training.decoder_losses:yolo_loss",
    recognize=recognize,
)
