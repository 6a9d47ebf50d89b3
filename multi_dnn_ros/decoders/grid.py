"""Heads with one box per cell or anchor, exported with decoded probabilities: FastestDet and SSD."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from multi_dnn_ros.decoders.base import Decoder, Floats, Integers, Values
from multi_dnn_ros.decoders.detr import MAX_QUERIES
from multi_dnn_ros.decoders.layout import LIKELY, POSSIBLE, Difference, Layout
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import RowDecoder, Rows
from multi_dnn_ros.vision.results import Detections

#: A map with a finer grid contains classes, not boxes.
_MIN_STRIDE = 8


class GridDecoder(Decoder):
    """(1, 5 + classes, rows, columns): per cell objectness, tx, ty, tw, th, then a probability per class.

    The head of FastestDet (github.com/dog-qiuqiu/FastestDet): score = objectness^0.6 * best class^0.4, center =
    (cell + tanh t) / cells, size = sigmoid t, all relative to the input.
    """

    name = "grid"
    signature = "(1, 5 + classes, rows, columns)"
    patterns = ((1, ("classes", 5), "rows", "columns"),)

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str] | Difference:
        """The best match is one cell per 16 x 16 pixels, as in FastestDet."""
        columns, rows = axes["columns"], axes["rows"]
        if layout.size == (16 * columns, 16 * rows):
            return LIKELY, "one cell per 16 x 16 pixels"
        if layout.size is not None and columns and rows:
            stride = layout.size[0] // columns
            if (columns * stride, rows * stride) != layout.size or stride < _MIN_STRIDE:
                size, expected = "{} x {}".format(*layout.size), f"one per n x n pixels, n at least {_MIN_STRIDE}"
                return Difference(f"{columns} x {rows} cells in an input of {size}; expected {expected}", 2.0)
        return POSSIBLE, "a grid with at least 6 channels"

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Detections:
        channels, rows, columns = outputs[0][0].shape
        cells = outputs[0][0].reshape(channels, rows * columns)
        best = cells[5:].max(axis=0)
        scores = np.maximum(cells[0], 0) ** 0.6 * np.maximum(best, 0) ** 0.4
        chosen = np.flatnonzero(scores >= self.score_threshold)
        cells = cells[:, chosen]
        row, column = (places.astype(np.float32) for places in np.divmod(chosen, columns))
        width, height = self.preprocess.width, self.preprocess.height
        center_x = (column + np.tanh(cells[1])) * (width / columns)
        center_y = (row + np.tanh(cells[2])) * (height / rows)
        # sigmoid(x) is (1 + tanh(x / 2)) / 2, which cannot overflow.
        half_w, half_h = (1 + np.tanh(cells[3] / 2)) * (width / 4), (1 + np.tanh(cells[4] / 2)) * (height / 4)
        boxes = np.array([center_x - half_w, center_y - half_h, center_x + half_w, center_y + half_h], np.float32).T
        return self.select(boxes, scores[chosen], cells[5:].argmax(axis=0), source_size)


class SsdDecoder(RowDecoder):
    """Probabilities (1, N, classes), the first class being background, and boxes (1, N, 4): x1, y1, x2, y2 as shares of
    the input.

    As github.com/qfgaohao/pytorch-ssd and dusty-nv/jetson-inference export them. `labels` also names the
    background, which is never reported. If both outputs have 4 columns, the first one has the classes.
    """

    name = "ssd"
    signature = "(1, N, classes) probabilities with background first, (1, N, 4) corners as shares of the input (SSD)"
    patterns = ((1, "N", "classes"), (1, "N", 4))

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str] | Difference:
        if axes["classes"] == 1:
            return Difference("1 class, which would be background", 1.0)
        what = f"{axes['N'] or '?'} boxes with {axes['classes'] or '?'} classes"
        return (LIKELY, what) if axes["N"] > MAX_QUERIES else (POSSIBLE, f"{what}, which are few for anchors")

    def rows(self, outputs: Sequence[Values]) -> Rows:
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


SPEC = DecoderSpec.of(GridDecoder, preprocess={"bgr": True})  # FastestDet is trained on BGR images, stretched
# (grey level - 127) / 128
SSD = DecoderSpec.of(SsdDecoder, preprocess={"mean": (127 / 255,) * 3, "std": (128 / 255,) * 3})
