"""Exports that include the selection of boxes: YOLOv10, YOLO26, and what Ultralytics exports with nms=True."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from multi_dnn_ros.decoders.base import LIMIT
from multi_dnn_ros.decoders.layout import LIKELY, POSSIBLE, Difference, Layout, Match, match
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import Floats, RecognizedDecoder, report_ranked
from multi_dnn_ros.vision.results import Detections

#: Maximum number of boxes that such exports report; more rows are candidates, not selected boxes.
MAX_BOXES = 1000


class EndToEndDecoder(RecognizedDecoder):
    """(1, N, 6): x1, y1, x2, y2 in input pixels, score, class. No non-maximum suppression is applied.

    Unused rows have score 0. github.com/THU-MIG/yolov10 (arXiv:2405.14458), docs.ultralytics.com.
    """

    name = "end_to_end"
    signature = "(1, N, 6)"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match(layout, [(1, "N", 6)])
        if isinstance(found, Difference):
            return found
        count = found.axes.get("N", 0)
        if count > MAX_BOXES:
            return Match(POSSIBLE, f"rows of 6 numbers, but {count} of them are more than such exports report")
        if not layout.shapes[0][2]:
            return Match(POSSIBLE, "rows of an unknown length")
        return Match(LIKELY, "rows of 6 numbers: box, score, class")

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Detections:
        rows = outputs[0][0].numpy()
        rows = rows[rows[:, 4] >= self.score_threshold]
        class_ids = rows[:, 5].round().astype(np.int64)
        boxes = self.corners(rows[:, :4].clip(-LIMIT, LIMIT))
        return report_ranked(self, boxes, rows[:, 4], class_ids, source_size)

    def corners(self, rows: Floats) -> Floats:
        """(K, 4) x1, y1, x2, y2 in input pixels of the first four columns."""
        return rows


SPEC = DecoderSpec(
    "end_to_end",
    EndToEndDecoder,
    signature="(1, N, 6): corners in input pixels, score, class, without NMS (YOLOv10, YOLO26, nms=True)",
    preprocess={"fit": "letterbox"},
    recognize=EndToEndDecoder.recognize,
)
