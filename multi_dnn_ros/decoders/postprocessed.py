"""Exports whose last layers select the boxes and report labels, boxes and scores as separate outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from multi_dnn_ros.decoders.base import LIMIT
from multi_dnn_ros.decoders.layout import EXACT, LIKELY, Difference, Layout, Match, Pattern, match
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import RecognizedDecoder, report_ranked
from multi_dnn_ros.vision.results import Detections, OutputError

_SEPARATE: tuple[Pattern, ...] = ((1, "N"), (1, "N", 4), (1, "N"))
_UNBATCHED: tuple[Pattern, ...] = (("N",), ("N", 4), ("N",))
_BOXES_WITH_SCORES: tuple[Pattern, ...] = ((1, "N"), (1, "N", 5))


class PostprocessedDecoder(RecognizedDecoder):
    """Labels (1, N), boxes (1, N, 4) x1, y1, x2, y2 in input pixels and scores (1, N), in any order.

    Variants: without the axis of length 1, as torchvision exports it, and with boxes and scores in one output
    (1, N, 5), as mmdeploy exports it. RT-DETR and D-FINE (github.com/lyuwenyu/RT-DETR, github.com/Peterande/D-FINE)
    give such outputs if their second input, orig_target_sizes, is fixed to the input size. Labels are whole numbers and
    scores are not; if that does not distinguish them, the labels come first. No non-maximum suppression is applied.
    """

    name = "postprocessed"
    signature = "labels (1, N), boxes (1, N, 4), scores (1, N)"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        if len(layout.shapes) == 2:
            found = match(layout, _BOXES_WITH_SCORES)
            return Match(LIKELY, "boxes with scores, and labels") if not isinstance(found, Difference) else found
        found = match(layout, _UNBATCHED if _is_unbatched(layout) else _SEPARATE)
        return Match(EXACT, "labels, boxes and scores") if not isinstance(found, Difference) else found

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Detections:
        arrays: list[npt.NDArray[Any]] = [output.numpy() for output in outputs]
        if len(arrays) == 2:
            labels, found = arrays if arrays[1].ndim == 3 else arrays[::-1]
            boxes, scores = found[0, :, :4], found[0, :, 4]
        else:
            position = next(index for index, array in enumerate(arrays) if array.shape[-1:] == (4,) and _holds_boxes(
                array, arrays))  # fmt: skip
            boxes = arrays.pop(position).reshape(-1, 4)
            first, second = arrays
            labels, scores = (second, first) if _is_integral(second) and not _is_integral(first) else (first, second)
        labels, scores = labels.reshape(-1), scores.reshape(-1)
        if not _is_integral(labels):
            raise OutputError("decoder postprocessed: no output other than the boxes holds whole numbers")
        return report_ranked(
            self, boxes.clip(-LIMIT, LIMIT), scores.astype(np.float32), labels.astype(np.int64), source_size
        )


def _is_unbatched(layout: Layout) -> bool:
    return sorted(map(len, layout.shapes)) == [1, 1, 2]


def _holds_boxes(array: npt.NDArray[Any], arrays: Sequence[npt.NDArray[Any]]) -> bool:
    """Whether no other output has more axes: with 4 boxes, labels and scores also have a last axis of length 4."""
    return all(array.ndim >= other.ndim for other in arrays)


def _is_integral(values: npt.NDArray[Any]) -> bool:
    return bool((values == np.round(values)).all())


SPEC = DecoderSpec(
    "postprocessed",
    PostprocessedDecoder,
    signature="labels (1, N), boxes (1, N, 4) in input pixels, scores (1, N); or boxes with scores (1, N, 5), labels "
    "(RT-DETR, D-FINE, torchvision, mmdeploy)",
    recognize=PostprocessedDecoder.recognize,
)
