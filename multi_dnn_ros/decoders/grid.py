"""Grid heads: one box per cell, with separate objectness and class probabilities (FastestDet)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from multi_dnn_ros.decoders.base import Decoder
from multi_dnn_ros.decoders.layout import LIKELY, POSSIBLE, Difference, Layout, Match, match_classes
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.results import Detections, OutputError

#: A map with a finer grid contains classes, not boxes.
_MIN_STRIDE = 8


class GridDecoder(Decoder):
    """(1, 5 + classes, rows, columns): per cell objectness, tx, ty, tw, th, then a probability per class.

    The head of FastestDet (github.com/dog-qiuqiu/FastestDet): score = objectness^0.6 * best class^0.4, center =
    (cell + tanh t) / cells, size = sigmoid t, all relative to the input.
    """

    name = "grid"

    def check(self, outputs: Sequence[torch.Tensor]) -> None:
        self.expect_outputs(outputs, 1)
        shape = tuple(outputs[0].shape)
        channels = 5 + len(self.labels)
        if len(shape) != 4 or shape[0] != 1 or shape[1] != channels:
            raise OutputError(
                f"output of shape {shape}, but decoder grid with {len(self.labels)} classes reads "
                f"(1, {channels}, rows, columns)"
            )

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Detections:
        # In NumPy: each operation of PyTorch takes several times as long for so few values, and releases the GIL.
        cells = outputs[0][0].numpy()
        channels, rows, columns = cells.shape
        cells = cells.reshape(channels, rows * columns)
        best = cells[5:].max(axis=0)
        scores = np.maximum(cells[0], 0) ** 0.6 * np.maximum(best, 0) ** 0.4
        chosen = (scores >= self.score_threshold).nonzero()[0]
        cells = cells[:, chosen]
        row, column = (places.astype(np.float32) for places in np.divmod(chosen, columns))
        width, height = self.preprocess.width, self.preprocess.height
        center_x = (column + np.tanh(cells[1])) * (width / columns)
        center_y = (row + np.tanh(cells[2])) * (height / rows)
        # sigmoid(x) is (1 + tanh(x / 2)) / 2, which cannot overflow.
        half_w, half_h = (1 + np.tanh(cells[3] / 2)) * (width / 4), (1 + np.tanh(cells[4] / 2)) * (height / 4)
        boxes = np.array([center_x - half_w, center_y - half_h, center_x + half_w, center_y + half_h]).T
        return self.select(boxes, scores[chosen], cells[5:].argmax(axis=0), source_size)


def recognize(layout: Layout) -> Match | Difference:
    """Whether GridDecoder reads such outputs; the best match is one cell per 16 x 16 pixels, as in FastestDet."""
    found = match_classes(layout, [(1, ("classes", 5), "rows", "columns")])
    if isinstance(found, Difference):
        return found
    classes = found.axes.get("classes", 0)
    columns, rows = found.axes.get("columns", 0), found.axes.get("rows", 0)
    if layout.size == (16 * columns, 16 * rows):
        return Match(LIKELY, "one cell per 16 x 16 pixels", classes)
    if layout.size is not None and columns and rows:
        width, height = layout.size
        if width % columns or height % rows or width // columns != height // rows or width // columns < _MIN_STRIDE:
            return Difference(
                f"{columns} x {rows} cells in an input of {width} x {height}; expected one per n x n pixels, n at "
                f"least {_MIN_STRIDE}", 2.0,
            )  # fmt: skip
    return Match(POSSIBLE, "a grid with at least 6 channels", classes)


SPEC = DecoderSpec(
    "grid",
    GridDecoder,
    signature="(1, 5 + classes, rows, columns)",
    preprocess={"bgr": True},  # FastestDet is trained on BGR images, stretched to the input
    recognize=recognize,
)
