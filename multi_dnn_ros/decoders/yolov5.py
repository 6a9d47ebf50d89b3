"""YOLOv5 and YOLOv7: rows with objectness, boxes already in input pixels."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from multi_dnn_ros.decoders.layout import (
    EXACT,
    POSSIBLE,
    Difference,
    Layout,
    Match,
    match_classes,
    strides_of,
)
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import Floats, Integers, RowDecoder, Rows, from_centers, with_objectness

_ANCHORS = 3


class YoloV5Decoder(RowDecoder):
    """(1, N, 5 + classes): cx, cy, w, h in input pixels, objectness, a probability per class.

    Score = objectness * class probability. github.com/ultralytics/yolov5 (export.py) and github.com/WongKinYiu/yolov7
    (export.py --grid) write this layout with three rows per cell; YOLOv6 and YOLOX, exported with their boxes decoded,
    write it with one.
    """

    name = "yolov5"
    signature = "(1, N, 5 + classes)"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match_classes(layout, [(1, "N", ("classes", 5))])
        if isinstance(found, Difference):
            return found
        count, classes = found.axes.get("N", 0), found.axes.get("classes", 0)
        strides = strides_of(layout.size, count, _ANCHORS)
        if strides is not None:
            return Match(EXACT, f"{count} rows are {_ANCHORS} per cell at strides {_listed(strides)}", classes)
        if count and classes > count:
            return Difference(f"{classes} classes in {count} rows: probably (1, 4 + classes, N)", 2.0)
        return Match(POSSIBLE, "rows of at least 6 numbers", classes)

    def rows(self, outputs: Sequence[Tensor]) -> Rows:
        return with_objectness(outputs[0])

    def corners(self, raw: Floats, index: Integers) -> Floats:
        return from_centers(raw)


def _listed(strides: tuple[int, ...]) -> str:
    return ", ".join(map(str, strides))


SPEC = DecoderSpec(
    "yolov5",
    YoloV5Decoder,
    signature="(1, N, 5 + classes): box in input pixels, objectness, classes (YOLOv5, v7)",
    preprocess={"fit": "letterbox"},
    recognize=YoloV5Decoder.recognize,
)
