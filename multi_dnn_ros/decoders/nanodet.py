"""NanoDet and relatives: distances from a point to the four sides, each as a distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from multi_dnn_ros.decoders.base import IMAGENET, Floats, Integers, Values, library
from multi_dnn_ros.decoders.layout import (
    EXACT,
    POSSIBLE,
    Bound,
    Difference,
    Layout,
    cells,
    check_classes,
    points,
    strides_of,
)
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import RowDecoder, Rows

_BINS = 8
_SIDES = 4 * _BINS


class _DistanceDecoder(RowDecoder):
    """Boxes from 32 logits: 8 bins for each of left, top, right, bottom.

    The distance is the expectation of the bin's number times the stride (generalized focal loss, arXiv:2006.04388).
    """

    #: The point of a cell from which distances are measured; 0.5: its center, 0: its upper left corner.
    offset: ClassVar[float] = 0.5

    def corners(self, raw: Floats, index: Integers) -> Floats:
        logits = raw.reshape(-1, 4, _BINS)
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        distances = (weights * np.arange(_BINS, dtype=np.float32)).sum(axis=2) / weights.sum(axis=2)
        stride = self._cells[index, 2:]
        begin = (self._cells[index, :2] + self.offset) * stride
        return np.concatenate([begin - distances[:, :2] * stride, begin + distances[:, 2:] * stride], axis=1)

    @cached_property
    def _cells(self) -> Floats:
        # Variants with fewer feature maps use the first of these rows.
        return points((self.preprocess.width, self.preprocess.height), (8, 16, 32, 64))


class NanoDetDecoder(_DistanceDecoder):
    """Probabilities (1, n, classes) and distances (1, n, 32) of each of three feature maps.

    Distances are from the middle of the cell (github.com/RangiLyu/nanodet, before NanoDet-Plus). Some exports lack the
    first axis. If both outputs of a feature map have 32 columns, the first one has the classes.
    """

    name = "nanodet"
    signature = "(1, n, classes) and (1, n, 32) for each of 3 feature maps (NanoDet)"
    #: Strides of the feature maps, finest first.
    maps: ClassVar[tuple[int, ...]] = (8, 16, 32)

    @classmethod
    def matches(cls, layout: Layout) -> Bound | Difference:
        """The order is that of the classes of each feature map, finest first, then the distances of each."""
        if layout.size is None:
            return Difference("the input size is not known", 4.0)
        shapes = [shape[-2:] for shape in layout.shapes if len(shape) >= 2 and shape[:-2] in ((), (1,))]
        counts = [columns * rows for columns, rows in (cells(layout.size, stride) for stride in cls.maps)]
        pairs = [[index for index, (rows, _) in enumerate(shapes) if rows == count] for count in counts]
        expected, found = 2 * len(counts), len(layout.shapes)
        if found == len(shapes) == expected and all(len(pair) == 2 for pair in pairs):
            for pair in pairs:
                pair.sort(key=lambda index: shapes[index][1] == _SIDES)
            order = (*(pair[0] for pair in pairs), *(pair[1] for pair in pairs))
            columns = [shapes[index][1] for index in order]
            if columns == [columns[0]] * len(counts) + [_SIDES] * len(counts):
                return check_classes(layout, columns[0]) or Bound(Counter(classes=columns[0]), order)
        text = f"{expected} outputs with n = {counts} expected, found {found}"
        return Difference(text, 4.0 + 8.0 * abs(found - expected))

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str]:
        return EXACT, f"classes and {_SIDES} numbers for distances at strides {cls.maps}"

    def rows(self, outputs: Sequence[Values]) -> Rows:
        size, half = (self.preprocess.width, self.preprocess.height), len(self.maps)
        found = self.matches(Layout(tuple(tuple(output.shape) for output in outputs), size, len(self.labels)))
        assert isinstance(found, Bound)  # check() has made sure
        scores, raw = (
            library(outputs[0]).concatenate([outputs[index].reshape(-1, outputs[index].shape[-1]) for index in part])
            for part in (found.order[:half], found.order[half:])
        )
        return Rows(raw, scores)


class PicoDetDecoder(NanoDetDecoder):
    """Probabilities (1, n, classes) and distances (1, n, 32) of each of four feature maps (strides 8, 16, 32, 64).

    PP-PicoDet exported without its post-processing (github.com/PaddlePaddle/PaddleDetection, configs/picodet).
    """

    name = "picodet"
    signature = "(1, n, classes) and (1, n, 32) for each of 4 feature maps (PP-PicoDet)"
    maps: ClassVar[tuple[int, ...]] = (8, 16, 32, 64)


class NanoDetPlusDecoder(_DistanceDecoder):
    """(1, N, classes + 32): a probability per class, then 8 logits for each of left, top, right, bottom.

    As NanoDet, but distances are measured from the upper left corner of the cell (github.com/RangiLyu/nanodet, head
    NanoDetPlusHead).
    """

    name = "nanodet_plus"
    signature = "(1, N, classes + 32) (NanoDet-Plus)"
    patterns = ((1, "N", ("classes", _SIDES)),)
    strides = ((8, 16, 32, 64), (8, 16, 32))
    offset: ClassVar[float] = 0.0

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str]:
        strides = strides_of(layout.size, axes["N"], allowed=cls.strides)
        if strides is None:
            return POSSIBLE, f"rows of more than {_SIDES} numbers"
        # Without class names, an output for three feature maps is more probably YOLOX's.
        certainty = EXACT if layout.classes or len(strides) == 4 else POSSIBLE
        return certainty, f"{axes['N']} rows are one per cell at strides {strides}"

    def rows(self, outputs: Sequence[Values]) -> Rows:
        rows = outputs[0][0]
        return Rows(rows[:, -_SIDES:], rows[:, :-_SIDES])


# As in the training configurations: blue first, ImageNet's mean and deviation, the image stretched.
_INPUT = {
    "bgr": True,
    "mean": (103.53 / 255, 116.28 / 255, 123.675 / 255),
    "std": (57.375 / 255, 57.12 / 255, 58.395 / 255),
}
SPEC = DecoderSpec.of(NanoDetDecoder, preprocess=_INPUT)
PLUS = DecoderSpec.of(NanoDetPlusDecoder, preprocess=_INPUT)
# configs/picodet/_base_/picodet_320_reader.yml: the image stretched.
PICODET = DecoderSpec.of(PicoDetDecoder, preprocess=IMAGENET)
