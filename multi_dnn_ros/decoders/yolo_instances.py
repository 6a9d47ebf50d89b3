"""Boxes and instance masks of Ultralytics' segmentation exports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.decoders.arrays import Floats
from multi_dnn_ros.decoders.base import LIMIT, MAX_CANDIDATES, Decoder, suppress
from multi_dnn_ros.decoders.lane_map import without_padding
from multi_dnn_ros.decoders.layout import Difference, Layout, Match
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import from_centers
from multi_dnn_ros.decoders.yolo import COEFFICIENTS, YoloMasksDecoder
from multi_dnn_ros.vision.results import Detections, InstanceMasks

#: Masks are uint8, and 0 means no instance.
_MAX_INSTANCES = 255


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


SPEC = DecoderSpec.of(
    YoloInstancesDecoder,
    "(1, 36 + classes, N), (1, 32, h, w): boxes and masks of segmentation exports (YOLOv8-seg, 11-seg)",
    result_kind="instance_masks",
    preprocess={"fit": "letterbox"},
    recognize=None,
)
