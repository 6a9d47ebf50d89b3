"""SSD from ONNX: class probabilities with background, and decoded boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor

from multi_dnn_ros.decoders.layout import LIKELY, POSSIBLE, Difference, Layout, Match, check_classes, match
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import Floats, Integers, RowDecoder, Rows
from multi_dnn_ros.decoders.rtdetr import MAX_QUERIES
from multi_dnn_ros.vision.results import Detections


class SsdDecoder(RowDecoder):
    """Probabilities (1, N, classes), the first class being background, and boxes (1, N, 4): x1, y1, x2, y2 as shares of
    the input.

    As github.com/qfgaohao/pytorch-ssd and dusty-nv/jetson-inference export them. `labels` also names the
    background, which is never reported. If both outputs have 4 columns, the first one has the classes.
    """

    name = "ssd"
    signature = "(1, N, classes) and (1, N, 4)"
    suppress: ClassVar[bool] = True

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match(layout, [(1, "N", ("others", 1)), (1, "N", 4)])
        if isinstance(found, Difference):
            return found
        count, others = found.axes.get("N", 0), found.axes.get("others", 0)
        classes = others + 1 if others else 0
        if (wrong := check_classes(layout, classes)) is not None:
            return wrong
        if count > MAX_QUERIES:
            return Match(LIKELY, f"{count} boxes with {classes or '?'} classes", classes)
        return Match(
            POSSIBLE, f"{count or '?'} boxes, which are few for anchors, with {classes or '?'} classes", classes
        )

    def rows(self, outputs: Sequence[Tensor]) -> Rows:
        swapped = outputs[1].shape[2] != 4
        scores, boxes = outputs[int(swapped)][0], outputs[1 - int(swapped)][0]
        return Rows(boxes, scores[:, 1:])

    def report(
        self, raw: Floats, scores: Floats, class_ids: Integers, index: Integers, source_size: tuple[int, int]
    ) -> Detections:
        return super().report(raw, scores, class_ids + 1, index, source_size)

    def corners(self, raw: Floats, index: Integers) -> Floats:
        width, height = self.preprocess.width, self.preprocess.height
        return raw * np.array([width, height, width, height], np.float32)


SPEC = DecoderSpec(
    "ssd",
    SsdDecoder,
    signature="(1, N, classes) probabilities with background first, (1, N, 4) corners as shares of the input (SSD)",
    # (grey level - 127) / 128
    preprocess={"mean": (127 / 255, 127 / 255, 127 / 255), "std": (128 / 255, 128 / 255, 128 / 255)},
    recognize=SsdDecoder.recognize,
)
