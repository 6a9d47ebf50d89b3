"""The YOLO family: rows of a box, perhaps objectness, and a probability per class; with or without instance masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.decoders.base import LETTERBOX, LIMIT, MAX_CANDIDATES, Decoder, Floats, Integers, Values
from multi_dnn_ros.decoders.lane_map import without_padding
from multi_dnn_ros.decoders.layout import (
    EXACT,
    LIKELY,
    POSSIBLE,
    Bound,
    Difference,
    Layout,
    Pattern,
    points,
    strides_of,
)
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import RowDecoder, Rows, from_centers
from multi_dnn_ros.vision.results import Detections, InstanceMasks

#: Rows per cell of YOLOv5 and v7.
ANCHORS = 3
#: Limit of YOLOX's log w and log h; its exponential is far above the size of any image.
_MAX_LOG = 12.0
#: Number of mask coefficients of a row after the classes, in segmentation exports.
COEFFICIENTS = 32
#: Masks are uint8, and 0 means no instance.
_MAX_INSTANCES = 255


class YoloDecoder(RowDecoder):
    """(1, 4 + classes, N): cx, cy, w, h in input pixels, then a probability per class, for N anchor points.

    The format of Ultralytics' exports since YOLOv8 (without built-in NMS) and of the built-in detectors.
    """

    name = "yolo"
    signature = "(1, 4 + classes, N)"
    patterns = ((1, ("classes", 4), "N"),)

    @classmethod
    def matches(cls, layout: Layout) -> Bound | Difference:
        found = super().matches(layout)
        if isinstance(found, Difference) and layout.classes and [len(shape) for shape in layout.shapes] == [3]:
            _, rows, columns = layout.shapes[0]
            if columns == layout.classes + 4:
                text = f"{rows} rows of {columns} columns are probably transposed; export it with anchor points last"
                return Difference(text, 0.3)
            if rows > layout.classes + 4:
                return Difference(f"{found.text}: an export for rotated boxes or poses?", 0.4)
        return found

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str] | Difference:
        """More anchor points than rows, ideally as many as the input has cells."""
        count, classes = axes["N"], axes["classes"]
        if (strides := strides_of(layout.size, count)) is not None:
            return EXACT, f"{count} columns are one per cell at strides {strides}"
        if count and classes + 4 > count:
            return Difference(f"{classes + 4} rows of {count} columns are probably transposed", 1.5)
        if layout.classes and classes:
            return LIKELY, f"4 rows more than the {classes} class names"
        return LIKELY if count > 1000 else POSSIBLE, "fewer rows than columns"

    def rows(self, outputs: Sequence[Values]) -> Rows:
        rows = outputs[0][0].T
        return Rows(rows[:, :4], rows[:, 4:])


class YoloV5Decoder(RowDecoder):
    """(1, N, 5 + classes): cx, cy, w, h in input pixels, objectness, a probability per class.

    Score = objectness * class probability. github.com/ultralytics/yolov5 (export.py) and github.com/WongKinYiu/yolov7
    (export.py --grid) write this layout with three rows per cell; YOLOv6 and YOLOX, exported with their boxes decoded,
    write it with one.
    """

    name = "yolov5"
    signature = "(1, N, 5 + classes): box in input pixels, objectness, classes (YOLOv5, v7)"
    patterns: ClassVar[Sequence[Pattern]] = ((1, "N", ("classes", 5)),)

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str] | Difference:
        count, classes = axes["N"], axes["classes"]
        if (strides := strides_of(layout.size, count, ANCHORS)) is not None:
            return EXACT, f"{count} rows are {ANCHORS} per cell at strides {strides}"
        if count and classes > count:
            return Difference(f"{classes} classes in {count} rows: probably (1, 4 + classes, N)", 2.0)
        return POSSIBLE, "rows of at least 6 numbers"

    def rows(self, outputs: Sequence[Values]) -> Rows:
        (rows,) = (output[0] for output in outputs if output.ndim == 3)
        return Rows(rows[:, :4], rows[:, 5:], rows[:, 4])


class YoloXDecoder(YoloV5Decoder):
    """(1, N, 5 + classes): x, y, log w, log h of the box in cells, objectness, a probability per class.

    One row per cell of each feature map: center = (cell + (x, y)) * stride, size = exp(log w, log h) * stride, score =
    objectness * class probability. github.com/Megvii-BaseDetection/YOLOX (tools/export_onnx.py) and arXiv:2107.08430.
    With --decode_in_inference the boxes are in pixels, which decoder yolov5 reads.
    """

    name = "yolox"
    signature = "(1, N, 5 + classes): box relative to its cell, objectness, classes (YOLOX)"

    strides = ((8, 16, 32), (8, 16, 32, 64))

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str]:
        strides = strides_of(layout.size, axes["N"], allowed=cls.strides)
        if strides is None:
            return POSSIBLE, "rows of at least 6 numbers"
        # Four feature maps are more common in NanoDet-Plus.
        certainty = EXACT if len(strides) == 3 else LIKELY
        return certainty, f"{axes['N']} rows are one per cell at strides {strides}"

    def corners(self, raw: Floats, index: Integers) -> Floats:
        cell = self._cells[index]
        stride = cell[:, 2:]
        center = (raw[:, :2] + cell[:, :2]) * stride
        return from_centers(np.concatenate([center, np.exp(raw[:, 2:].clip(max=_MAX_LOG)) * stride], axis=1))

    @cached_property
    def _cells(self) -> Floats:
        # Variants with three strides use a prefix of these strides, and therefore of these rows.
        return points((self.preprocess.width, self.preprocess.height), self.strides[-1])


class YoloMasksDecoder(RowDecoder):
    """(1, 4 + classes + 32, N) and (1, 32, h, w): as decoder yolo, with 32 mask coefficients per row, and the masks'
    prototypes.

    Only the boxes are reported; decoder yolo_instances reports the masks too.
    """

    name = "yolo_masks"
    signature = "(1, 36 + classes, N), (1, 32, h, w): boxes of segmentation exports (YOLOv8-seg, 11-seg)"
    patterns = ((1, ("classes", 4 + COEFFICIENTS), "N"), (1, COEFFICIENTS, "h", "w"))

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str]:
        certainty = EXACT if strides_of(layout.size, axes["N"]) else LIKELY
        return certainty, f"boxes, {axes['classes'] or '?'} classes and {COEFFICIENTS} mask coefficients"

    def rows(self, outputs: Sequence[Values]) -> Rows:
        (columns,) = (output[0] for output in outputs if output.ndim == 3)
        rows = columns.T
        return Rows(rows[:, :4], rows[:, 4:-COEFFICIENTS])


class YoloInstancesDecoder(Decoder):
    """(1, 4 + classes + 32, N) and (1, 32, h, w): as decoder yolo_masks, with a mask per box -> InstanceMasks.

    A mask is the sum of the prototypes with the row's coefficients as weights, where it is positive, inside the box
    (YOLACT, arXiv:1904.02689). Where masks overlap, the best score decides. At most 255 instances.
    """

    name = "yolo_instances"
    signature = "(1, 36 + classes, N), (1, 32, h, w): boxes and masks of segmentation exports (YOLOv8-seg, 11-seg)"
    patterns = YoloMasksDecoder.patterns
    result_kind = "instance_masks"

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> InstanceMasks:
        columns, prototypes = sorted((output[0] for output in outputs), key=np.ndim)
        rows = columns[:, columns[4:-COEFFICIENTS].max(0) >= self.score_threshold].T
        classes = rows[:, 4:-COEFFICIENTS]
        scores, ids = classes.max(1, initial=0.0), classes.argmax(1)
        boxes = from_centers(rows[:, :4].clip(-LIMIT, LIMIT))
        index, corners = self.choose(boxes, scores, ids, source_size)
        index, corners = index[:_MAX_INSTANCES], corners[:_MAX_INSTANCES]
        numbers = self._numbers(rows[index, -COEFFICIENTS:], prototypes, boxes[index])
        content = np.ascontiguousarray(without_padding(numbers, self.preprocess, source_size))
        return InstanceMasks(Detections(corners, scores[index], ids[index], self.labels), content, source_size)

    def _numbers(self, coefficients: Floats, prototypes: Floats, boxes: Floats) -> npt.NDArray[np.uint8]:
        """(h, w) uint8, the number of each pixel's instance, 0: none. boxes: (K, 4) in input pixels, best first."""
        _, height, width = prototypes.shape
        numbers = np.zeros((height, width), np.uint8)
        scale = np.array([width / self.preprocess.width, height / self.preprocess.height] * 2)
        for index in range(len(boxes) - 1, -1, -1):  # the best one last, over the others
            x1, y1, x2, y2 = (boxes[index] * scale).clip(0, [width, height, width, height])
            # Pixels whose center is inside the box.
            columns, rows = slice(round(x1), max(round(x2), round(x1))), slice(round(y1), max(round(y2), round(y1)))
            values = np.tensordot(coefficients[index], prototypes[:, rows, columns], 1)
            numbers[rows, columns][values > 0] = index + 1
        return numbers


class EndToEndDecoder(Decoder):
    """(1, N, 6): x1, y1, x2, y2 in input pixels, score, class. No non-maximum suppression is applied.

    Unused rows have score 0. Exports that include the selection of boxes: github.com/THU-MIG/yolov10
    (arXiv:2405.14458), YOLO26, and what Ultralytics exports with nms=True (docs.ultralytics.com).
    """

    name = "end_to_end"
    signature = "(1, N, 6): corners in input pixels, score, class, without NMS (YOLOv10, YOLO26, nms=True)"
    patterns = ((1, "N", 6),)

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str]:
        if axes["N"] > MAX_CANDIDATES:
            return POSSIBLE, f"rows of 6 numbers, but {axes['N']} of them are more than such exports report"
        if not layout.shapes[0][2]:
            return POSSIBLE, "rows of an unknown length"
        return LIKELY, "rows of 6 numbers: box, score, class"

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Detections:
        rows = outputs[0][0]
        rows = rows[rows[:, 4] >= self.score_threshold]
        boxes = self.corners(rows[:, :4].clip(-LIMIT, LIMIT))
        return self.select(boxes, rows[:, 4], rows[:, 5].round().astype(np.int64), source_size, suppressed=False)

    def corners(self, rows: Floats) -> Floats:
        """(K, 4) x1, y1, x2, y2 in input pixels of the first four columns."""
        return rows


SPEC = DecoderSpec.of(YoloDecoder, preprocess=LETTERBOX, loss="multi_dnn_ros.training.losses:yolo_loss")
V5 = DecoderSpec.of(YoloV5Decoder, preprocess=LETTERBOX)
# Grey levels 0..255, blue first, the image in the upper left corner.
X = DecoderSpec.of(YoloXDecoder, preprocess={**LETTERBOX, "centered": False, "bgr": True, "std": (1 / 255,) * 3})
MASKS = DecoderSpec.of(YoloMasksDecoder, preprocess=LETTERBOX)
END_TO_END = DecoderSpec.of(EndToEndDecoder, preprocess=LETTERBOX)
INSTANCES = DecoderSpec.of(YoloInstancesDecoder, preprocess=LETTERBOX, recognize=None)
