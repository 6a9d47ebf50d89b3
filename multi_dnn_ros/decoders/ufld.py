"""Ultra Fast Lane Detection, version 2: positions of lanes in rows of the image, or in columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.decoders.base import IMAGENET, Decoder
from multi_dnn_ros.decoders.base import Floats as Array
from multi_dnn_ros.decoders.lane_curves import Floats, in_source, lanes_of_points
from multi_dnn_ros.decoders.layout import EXACT, LIKELY, Bound, Difference, Layout, Pattern, match_any
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.results import Lanes

_LANES = 4
#: The two lines of the ego lane are located in rows, the outer lines of the two neighbouring lanes in columns.
_BY_ROW, _BY_COLUMN = (1, 2), (0, 3)
#: A line must exist in more than this share of its rows, or columns.
_ROW_SHARE, _COLUMN_SHARE = 1 / 2, 1 / 4
#: Minimum number of points of a lane.
_MIN_POINTS = 3


class _Anchors(NamedTuple):
    """What a network was trained for.

    rows, columns: their numbers. first, last: position of the first and the last row as a share of the height of the
    whole image. seen: lower part of the image that is the network's input, as a share of the height. size: width and
    height of the input.
    """

    name: str
    rows: int
    columns: int
    first: float
    last: float
    seen: float
    size: tuple[int, int]


_TRAINED_FOR = (
    _Anchors("CULane", 72, 81, 0.42, 1.0, 0.6, (1600, 320)),
    _Anchors("TuSimple", 56, 41, 160 / 720, 710 / 720, 0.8, (800, 320)),
)


def _patterns(anchors: _Anchors) -> list[Pattern]:
    """The shapes of the four outputs: positions by row, positions by column, existence by row, existence by column."""
    return [
        (1, "cells per row", anchors.rows, _LANES), (1, "cells per column", anchors.columns, _LANES),
        (1, 2, anchors.rows, _LANES), (1, 2, anchors.columns, _LANES),
    ]  # fmt: skip


def _trained_for(shapes: Sequence[tuple[int, ...]]) -> _Anchors:
    """What the network was trained for, by shapes that match one of the forms."""
    return next(anchors for anchors in _TRAINED_FOR if any(shape[2] in (anchors.rows, 0) for shape in shapes))


class UfldV2Decoder(Decoder):
    """Logits of positions (1, cells, rows, 4) and (1, cells, columns, 4), of existence (1, 2, rows, 4) and
    (1, 2, columns, 4), where index 0 of the 2 means "no line" -> Lanes. 72 rows and 81 columns: trained on CULane; 56
    and 41: on TuSimple.

    Lines 1 and 2 have a point in each row where they exist, lines 0 and 3 in each column; the position is the
    expectation under a softmax over the best cell and its two neighbours (arXiv:2206.07389, github.com/cfzd/
    Ultra-Fast-Lane-Detection-v2, demo.py). A line must exist in more than half of the rows, or a quarter of the
    columns, and have 3 points in the image; its score is the mean probability of existence at its points and must reach
    `score_threshold`.

    The network's input is the lower part of the image only, 0.6 of the height for CULane and 0.8 for TuSimple, which
    parameter `crop` must select; its outputs are relative to the whole image. The results are in pixels of the crop.
    """

    name = "ufldv2"
    signature = (
        "(1, cells, rows, 4), (1, cells, columns, 4), (1, 2, rows, 4), (1, 2, columns, 4) logits of positions "
        "and of existence (UFLDv2 for CULane, TuSimple)"
    )
    result_kind = "lanes"
    default_labels = ("lane",)

    @classmethod
    def matches(cls, layout: Layout) -> Bound | Difference:
        return match_any(Layout(layout.shapes), [_patterns(anchors) for anchors in _TRAINED_FOR])

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str]:
        anchors = _trained_for(layout.shapes)
        why = f"4 lanes in {anchors.rows} rows and {anchors.columns} columns, as for {anchors.name}"
        return EXACT if layout.size == anchors.size else LIKELY, why

    def decode(self, outputs: Sequence[Array], source_size: tuple[int, int]) -> Lanes:
        shapes = tuple(tuple(output.shape) for output in outputs)
        found, anchors = self.matches(Layout(shapes)), _trained_for(shapes)
        assert isinstance(found, Bound)  # check() has made sure
        row_positions, column_positions, row_existence, column_existence = (
            outputs[index][0].astype(np.float64) for index in found.order
        )
        width, height = self.preprocess.width, self.preprocess.height
        begin = 1.0 - anchors.seen
        rows = np.linspace(anchors.first, anchors.last, anchors.rows)
        columns = np.linspace(0.0, 1.0, anchors.columns)
        lines = []
        for lane in range(_LANES):
            if lane in _BY_ROW:
                exists, probability = _existence(row_existence[:, :, lane], _ROW_SHARE)
                x, y = _positions(row_positions[:, :, lane]), rows
            else:
                exists, probability = _existence(column_existence[:, :, lane], _COLUMN_SHARE)
                x, y = columns, _positions(column_positions[:, :, lane])
            points, inside = in_source(x * width, (y - begin) / anchors.seen * height, self.preprocess, source_size)
            chosen = np.flatnonzero(exists & inside)
            if len(chosen) < _MIN_POINTS or (score := float(probability[chosen].mean())) < self.score_threshold:
                continue
            chosen = chosen[np.argsort(-points[chosen, 1], kind="stable")]  # from the bottom up
            lines.append((points[chosen], score))
        return lanes_of_points(lines, source_size, self.max_detections)


def _existence(logits: Floats, share: float) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Whether a line exists at each anchor, and the probability. logits: (2, anchors).

    A line that exists at no more than `share` of the anchors is treated as existing at none.
    """
    exists = logits[1] > logits[0]
    if exists.sum() <= share * exists.size:
        exists = np.zeros_like(exists)
    return exists, 1.0 / (1.0 + np.exp((logits[0] - logits[1]).clip(-700, 700)))


def _positions(logits: Floats) -> Floats:
    """Position at each anchor as a share of the image. logits: (cells, anchors)."""
    cells = len(logits)
    best = logits.argmax(axis=0)
    index = best + np.array([[-1], [0], [1]])  # the expectation is over the best cell and its neighbours
    values = np.take_along_axis(logits, index.clip(0, cells - 1), axis=0)
    values[(index < 0) | (index >= cells)] = -np.inf
    powers = np.exp(values - values.max(axis=0))
    position: Floats = ((powers * index).sum(axis=0) / powers.sum(axis=0) + 0.5) / max(cells - 1, 1)
    return position


SPEC = DecoderSpec.of(UfldV2Decoder, preprocess=IMAGENET)
