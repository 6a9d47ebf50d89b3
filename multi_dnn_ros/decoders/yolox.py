"""YOLOX: rows with objectness, boxes relative to their cell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from torch import Tensor

from multi_dnn_ros.decoders.layout import (
    EXACT,
    LIKELY,
    POSSIBLE,
    Difference,
    Layout,
    Match,
    match_classes,
    points,
    row_count,
    strides_of,
)
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import Floats, Integers, RowDecoder, Rows, from_centers, with_objectness

_STRIDES = ((8, 16, 32), (8, 16, 32, 64))
#: Limit of log w and log h; its exponential is far above the size of any image.
_MAX_LOG = 12.0


class YoloXDecoder(RowDecoder):
    """(1, N, 5 + classes): x, y, log w, log h of the box in cells, objectness, a probability per class.

    One row per cell of each feature map: center = (cell + (x, y)) * stride, size = exp(log w, log h) * stride, score =
    objectness * class probability. github.com/Megvii-BaseDetection/YOLOX (tools/export_onnx.py) and arXiv:2107.08430.
    With --decode_in_inference the boxes are in pixels, which decoder yolov5 reads.
    """

    name = "yolox"
    signature = "(1, N, 5 + classes)"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match_classes(layout, [(1, "N", ("classes", 5))])
        if isinstance(found, Difference):
            return found
        count, classes = found.axes.get("N", 0), found.axes.get("classes", 0)
        if layout.size is None or not count:
            return Match(POSSIBLE, "rows of at least 6 numbers", classes)
        strides = strides_of(layout.size, count, allowed=_STRIDES)
        if strides is None:
            width, height = layout.size
            allowed = " or ".join(str(row_count(layout.size, strides)) for strides in _STRIDES)
            return Difference(f"{count} rows; one per cell of an input of {width} x {height} would be {allowed}", 0.7)
        # Four feature maps are more common in NanoDet-Plus.
        certainty = EXACT if len(strides) == 3 else LIKELY
        return Match(certainty, f"{count} rows are one per cell at strides {', '.join(map(str, strides))}", classes)

    def rows(self, outputs: Sequence[Tensor]) -> Rows:
        return with_objectness(outputs[0])

    def corners(self, raw: Floats, index: Integers) -> Floats:
        cell = self._cells[index]
        stride = cell[:, 2:]
        center = (raw[:, :2] + cell[:, :2]) * stride
        return from_centers(np.concatenate([center, np.exp(raw[:, 2:].clip(max=_MAX_LOG)) * stride], axis=1))

    @cached_property
    def _cells(self) -> Floats:
        # Variants with three strides use a prefix of these strides, and therefore of these rows.
        return points((self.preprocess.width, self.preprocess.height), _STRIDES[-1])


SPEC = DecoderSpec(
    "yolox",
    YoloXDecoder,
    signature="(1, N, 5 + classes): box relative to its cell, objectness, classes (YOLOX)",
    # Grey levels 0..255, blue first, the image in the upper left corner.
    preprocess={"fit": "letterbox", "centered": False, "bgr": True, "std": (1 / 255, 1 / 255, 1 / 255)},
    recognize=YoloXDecoder.recognize,
)
