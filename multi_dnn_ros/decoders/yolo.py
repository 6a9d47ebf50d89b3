"""The YOLO family: rows of a box, perhaps objectness, and a probability per class; with or without instance masks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.decoders.arrays import Floats, Integers, Values
from multi_dnn_ros.decoders.base import LIMIT, MAX_CANDIDATES, Decoder, suppress
from multi_dnn_ros.decoders.lane_map import without_padding
from multi_dnn_ros.decoders.layout import (
    EXACT,
    LIKELY,
    POSSIBLE,
    Difference,
    Layout,
    Match,
    check_classes,
    listed,
    match,
    match_classes,
    points,
    row_count,
    strides_of,
)
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import RowDecoder, Rows, from_centers, with_objectness
from multi_dnn_ros.vision.results import Detections, InstanceMasks

#: Rows per cell of YOLOv5 and v7.
_ANCHORS = 3
#: Strides of YOLOX.
_STRIDES = ((8, 16, 32), (8, 16, 32, 64))
#: Limit of YOLOX's log w and log h; its exponential is far above the size of any image.
_MAX_LOG = 12.0
#: Number of mask coefficients of a row after the classes, in segmentation exports.
COEFFICIENTS = 32
#: Masks are uint8, and 0 means no instance.
_MAX_INSTANCES = 255
#: Maximum number of boxes that exports with selection report; more rows are candidates, not selected boxes.
_MAX_BOXES = 1000


class YoloDecoder(RowDecoder):
    """(1, 4 + classes, N): cx, cy, w, h in input pixels, then a probability per class, for N anchor points.

    The format of Ultralytics' exports since YOLOv8 (without built-in NMS) and of the built-in detectors.
    """

    name = "yolo"
    signature = "(1, 4 + classes, N)"
    patterns = ((1, ("classes", 4), "N"),)

    @classmethod
    def fits(cls, layout: Layout) -> Match | Difference:
        found = cls.matches_patterns(layout)
        if isinstance(found, Difference) and layout.shapes[0][-1:] == (layout.classes + 4,):
            return Difference("the output is transposed; export the DNN with the anchor points last", found.distance)
        return found

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        """More anchor points than rows, ideally as many as the input has cells."""
        found = match(layout, cls.patterns)
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
                text = f"{wrong.text}: an export for rotated boxes (1 row more) or poses (3 per keypoint)?"
                return Difference(text, 0.4)
            return wrong
        if strides is not None:
            return Match(EXACT, f"{count} columns are one per cell at strides {listed(strides)}", classes)
        if layout.classes and classes:
            return Match(LIKELY, f"4 rows more than the {classes} class names", classes)
        return Match(LIKELY if count > 1000 else POSSIBLE, "fewer rows than columns", classes)

    def rows(self, outputs: Sequence[Values]) -> Rows:
        rows = outputs[0][0].T
        return Rows(rows[:, :4], rows[:, 4:])

    def corners(self, raw: Floats, index: Integers) -> Floats:
        return from_centers(raw)


class YoloV5Decoder(RowDecoder):
    """(1, N, 5 + classes): cx, cy, w, h in input pixels, objectness, a probability per class.

    Score = objectness * class probability. github.com/ultralytics/yolov5 (export.py) and github.com/WongKinYiu/yolov7
    (export.py --grid) write this layout with three rows per cell; YOLOv6 and YOLOX, exported with their boxes decoded,
    write it with one.
    """

    name = "yolov5"
    signature = "(1, N, 5 + classes)"
    patterns = ((1, "N", ("classes", 5)),)

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match_classes(layout, cls.patterns)
        if isinstance(found, Difference):
            return found
        count, classes = found.axes.get("N", 0), found.axes.get("classes", 0)
        strides = strides_of(layout.size, count, _ANCHORS)
        if strides is not None:
            return Match(EXACT, f"{count} rows are {_ANCHORS} per cell at strides {listed(strides)}", classes)
        if count and classes > count:
            return Difference(f"{classes} classes in {count} rows: probably (1, 4 + classes, N)", 2.0)
        return Match(POSSIBLE, "rows of at least 6 numbers", classes)

    def rows(self, outputs: Sequence[Values]) -> Rows:
        return with_objectness(outputs[0])

    def corners(self, raw: Floats, index: Integers) -> Floats:
        return from_centers(raw)


class YoloXDecoder(YoloV5Decoder):
    """(1, N, 5 + classes): x, y, log w, log h of the box in cells, objectness, a probability per class.

    One row per cell of each feature map: center = (cell + (x, y)) * stride, size = exp(log w, log h) * stride, score =
    objectness * class probability. github.com/Megvii-BaseDetection/YOLOX (tools/export_onnx.py) and arXiv:2107.08430.
    With --decode_in_inference the boxes are in pixels, which decoder yolov5 reads.
    """

    name = "yolox"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match_classes(layout, cls.patterns)
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
        return Match(certainty, f"{count} rows are one per cell at strides {listed(strides)}", classes)

    def corners(self, raw: Floats, index: Integers) -> Floats:
        cell = self._cells[index]
        stride = cell[:, 2:]
        center = (raw[:, :2] + cell[:, :2]) * stride
        return from_centers(np.concatenate([center, np.exp(raw[:, 2:].clip(max=_MAX_LOG)) * stride], axis=1))

    @cached_property
    def _cells(self) -> Floats:
        # Variants with three strides use a prefix of these strides, and therefore of these rows.
        return points((self.preprocess.width, self.preprocess.height), _STRIDES[-1])


class YoloMasksDecoder(RowDecoder):
    """(1, 4 + classes + 32, N) and (1, 32, h, w): as decoder yolo, with 32 mask coefficients per row, and the masks'
    prototypes.

    Only the boxes are reported; decoder yolo_instances reports the masks too.
    """

    name = "yolo_masks"
    signature = "(1, 36 + classes, N) and (1, 32, h, w)"
    patterns = ((1, ("classes", 4 + COEFFICIENTS), "N"), (1, COEFFICIENTS, "h", "w"))

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match_classes(layout, cls.patterns)
        if isinstance(found, Difference):
            return found
        count, classes = found.axes.get("N", 0), found.axes.get("classes", 0)
        certainty = EXACT if strides_of(layout.size, count) else LIKELY
        return Match(certainty, f"boxes, {classes or '?'} classes and {COEFFICIENTS} mask coefficients", classes)

    def rows(self, outputs: Sequence[Values]) -> Rows:
        (columns,) = (output[0] for output in outputs if output.ndim == 3)
        rows = columns.T
        return Rows(rows[:, :4], rows[:, 4:-COEFFICIENTS])

    def corners(self, raw: Floats, index: Integers) -> Floats:
        return from_centers(raw)


class YoloInstancesDecoder(Decoder):
    """(1, 4 + classes + 32, N) and (1, 32, h, w): as decoder yolo_masks, with a mask per box -> InstanceMasks.

    A mask is the sum of the prototypes with the row's coefficients as weights, where it is positive, inside the box
    (YOLACT, arXiv:1904.02689). Where masks overlap, the best score decides. At most 255 instances.
    """

    name = "yolo_instances"
    signature = YoloMasksDecoder.signature

    @classmethod
    def fits(cls, layout: Layout) -> Match | Difference:
        return YoloMasksDecoder.recognize(layout)

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> InstanceMasks:
        (columns,) = (output[0] for output in outputs if output.ndim == 3)
        (prototypes,) = (output[0] for output in outputs if output.ndim == 4)
        rows = columns.T
        classes = rows[:, 4:-COEFFICIENTS]
        scores, ids = classes.max(1), classes.argmax(1).astype(np.int64)
        chosen = scores >= self.score_threshold
        if self.kept:
            chosen &= np.isin(ids, self.kept)
        index = np.flatnonzero(chosen)
        index = index[np.argsort(-scores[index], kind="stable")[:MAX_CANDIDATES]]
        inputs = from_centers(rows[index, :4].clip(-LIMIT, LIMIT))
        height, width = source_size
        boxes = self.preprocess.geometry(source_size).to_source(inputs)
        first = suppress(boxes, scores[index], ids[index], self.iou_threshold)
        clipped = boxes[first].clip(0, np.array([width, height, width, height], np.float32))
        inside = (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1])
        first, clipped = (values[inside][: min(self.max_detections, _MAX_INSTANCES)] for values in (first, clipped))
        found = index[first]
        detections = Detections(clipped.astype(np.float32), scores[found], ids[found], self.labels)
        numbers = self._numbers(rows[found, -COEFFICIENTS:], prototypes, inputs[first])
        content = np.ascontiguousarray(without_padding(numbers, self.preprocess, source_size))
        return InstanceMasks(detections, content, source_size)

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
    signature = "(1, N, 6)"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match(layout, [(1, "N", 6)])
        if isinstance(found, Difference):
            return found
        count = found.axes.get("N", 0)
        if count > _MAX_BOXES:
            return Match(POSSIBLE, f"rows of 6 numbers, but {count} of them are more than such exports report")
        if not layout.shapes[0][2]:
            return Match(POSSIBLE, "rows of an unknown length")
        return Match(LIKELY, "rows of 6 numbers: box, score, class")

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Detections:
        rows = outputs[0][0]
        rows = rows[rows[:, 4] >= self.score_threshold]
        boxes = self.corners(rows[:, :4].clip(-LIMIT, LIMIT))
        return self.select_ranked(boxes, rows[:, 4], rows[:, 5].round().astype(np.int64), source_size)

    def corners(self, rows: Floats) -> Floats:
        """(K, 4) x1, y1, x2, y2 in input pixels of the first four columns."""
        return rows


SPEC = DecoderSpec.of(
    YoloDecoder,
    preprocess={"fit": "letterbox"},  # as Ultralytics trains
    loss="multi_dnn_ros.training.losses:yolo_loss",
)
V5 = DecoderSpec.of(
    YoloV5Decoder,
    "(1, N, 5 + classes): box in input pixels, objectness, classes (YOLOv5, v7)",
    preprocess={"fit": "letterbox"},
)
X = DecoderSpec.of(
    YoloXDecoder,
    "(1, N, 5 + classes): box relative to its cell, objectness, classes (YOLOX)",
    # Grey levels 0..255, blue first, the image in the upper left corner.
    preprocess={"fit": "letterbox", "centered": False, "bgr": True, "std": (1 / 255, 1 / 255, 1 / 255)},
)
MASKS = DecoderSpec.of(
    YoloMasksDecoder,
    "(1, 36 + classes, N), (1, 32, h, w): boxes of segmentation exports (YOLOv8-seg, 11-seg)",
    preprocess={"fit": "letterbox"},
)
END_TO_END = DecoderSpec.of(
    EndToEndDecoder,
    "(1, N, 6): corners in input pixels, score, class, without NMS (YOLOv10, YOLO26, nms=True)",
    preprocess={"fit": "letterbox"},
)
INSTANCES = DecoderSpec.of(
    YoloInstancesDecoder,
    "(1, 36 + classes, N), (1, 32, h, w): boxes and masks of segmentation exports (YOLOv8-seg, 11-seg)",
    result_kind="instance_masks",
    preprocess={"fit": "letterbox"},
    recognize=None,
)
