"""NanoDet and relatives: distances from a point to the four sides, each as a distribution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from multi_dnn_ros.decoders.arrays import Floats, Integers, Values, joined
from multi_dnn_ros.decoders.layout import (
    EXACT,
    POSSIBLE,
    Difference,
    Layout,
    Match,
    cells,
    check_classes,
    listed,
    match_classes,
    points,
    strides_of,
)
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import RowDecoder, Rows

_BINS = 8
_SIDES = 4 * _BINS
#: Strides of NanoDet-Plus, and of its variant with three feature maps.
_STRIDES = ((8, 16, 32, 64), (8, 16, 32))
#: As in the training configurations: blue first, ImageNet's mean and deviation, the image stretched.
_PREPROCESS = {
    "bgr": True,
    "mean": (103.53 / 255, 116.28 / 255, 123.675 / 255),
    "std": (57.375 / 255, 57.12 / 255, 58.395 / 255),
}


class NanoDetDecoder(RowDecoder):
    """Probabilities (1, n, classes) and distances (1, n, 32) of each of three feature maps.

    The 32 numbers are logits of 8 bins for each of left, top, right, bottom; the distance is the expectation of the
    bin's number times the stride (generalized focal loss, arXiv:2006.04388), from the middle of the cell
    (github.com/RangiLyu/nanodet, before NanoDet-Plus). Some exports lack the first axis.
    """

    name = "nanodet"
    signature = "(1, n, classes) and (1, n, 32) for each of 3 feature maps"
    #: Strides of the feature maps, finest first.
    strides: ClassVar[tuple[int, ...]] = (8, 16, 32)
    #: The point of a cell from which distances are measured; 0.5: its center, 0: its upper left corner.
    offset: ClassVar[float] = 0.5

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        if layout.size is None:
            return Difference("the input size is not known", 4.0)
        order = _order(layout.shapes, layout.size, cls.strides)
        if order is None:
            counts = [columns * rows for columns, rows in (cells(layout.size, stride) for stride in cls.strides)]
            return Difference(
                f"{2 * len(cls.strides)} outputs with n = {listed(counts)} expected, found {len(layout.shapes)}",
                4.0 + 8.0 * abs(len(layout.shapes) - 2 * len(cls.strides)),
            )
        classes = layout.shapes[order[0]][-1]
        wrong = check_classes(layout, classes)
        why = f"classes and {_SIDES} numbers for distances at strides {listed(cls.strides)}"
        return wrong or Match(EXACT, why, classes)

    def rows(self, outputs: Sequence[Values]) -> Rows:
        shapes = tuple(tuple(output.shape) for output in outputs)
        order = _order(shapes, (self.preprocess.width, self.preprocess.height), self.strides)
        assert order is not None  # check() has made sure
        half = len(self.strides)
        scores, raw = (
            joined([outputs[index].reshape(-1, outputs[index].shape[-1]) for index in part])
            for part in (order[:half], order[half:])
        )
        return Rows(raw, scores)

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
        return points((self.preprocess.width, self.preprocess.height), _STRIDES[0])


class PicoDetDecoder(NanoDetDecoder):
    """Probabilities (1, n, classes) and distances (1, n, 32) of each of four feature maps (strides 8, 16, 32, 64).

    PP-PicoDet exported without its post-processing (github.com/PaddlePaddle/PaddleDetection, configs/picodet).
    """

    name = "picodet"
    signature = "(1, n, classes) and (1, n, 32) for each of 4 feature maps"
    strides: ClassVar[tuple[int, ...]] = (8, 16, 32, 64)


class NanoDetPlusDecoder(NanoDetDecoder):
    """(1, N, classes + 32): a probability per class, then 8 logits for each of left, top, right, bottom.

    As NanoDet, but distances are measured from the upper left corner of the cell (github.com/RangiLyu/nanodet, head
    NanoDetPlusHead).
    """

    name = "nanodet_plus"
    signature = "(1, N, classes + 32)"
    offset: ClassVar[float] = 0.0

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match_classes(layout, [(1, "N", ("classes", _SIDES))])
        if isinstance(found, Difference):
            return found
        count, classes = found.axes.get("N", 0), found.axes.get("classes", 0)
        if layout.size is None or not count:
            return Match(POSSIBLE, f"rows of more than {_SIDES} numbers", classes)
        strides = strides_of(layout.size, count, allowed=_STRIDES)
        if strides is None:
            return Difference(f"{count} rows, which is not one per cell of 4 feature maps", 0.8)
        # Without class names, an output for three feature maps is more probably YOLOX's.
        certainty = EXACT if layout.classes or len(strides) == 4 else POSSIBLE
        return Match(certainty, f"{count} rows are one per cell at strides {listed(strides)}", classes)

    def rows(self, outputs: Sequence[Values]) -> Rows:
        rows = outputs[0][0]
        return Rows(rows[:, -_SIDES:], rows[:, :-_SIDES])


def _order(
    shapes: Sequence[tuple[int, ...]], size: tuple[int, int], strides: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Indices of the outputs: the classes of each feature map, finest first, then the distances of each; None: the
    shapes do not fit. If both outputs of a feature map have 32 columns, the first one has the classes.
    """
    if len(shapes) != 2 * len(strides) or any(len(shape) < 2 or shape[:-2] not in ((), (1,)) for shape in shapes):
        return None
    classes, distances = [], []
    for stride in strides:
        columns, rows = cells(size, stride)
        indices = [index for index, shape in enumerate(shapes) if shape[-2] == columns * rows]
        if len(indices) != 2:
            return None
        if shapes[indices[0]][-1] == _SIDES and shapes[indices[1]][-1] != _SIDES:
            indices.reverse()
        if shapes[indices[1]][-1] != _SIDES:
            return None
        classes.append(indices[0])
        distances.append(indices[1])
    if len({shapes[index][-1] for index in classes}) != 1:
        return None
    return (*classes, *distances)


SPEC = DecoderSpec.of(
    NanoDetDecoder,
    "(1, n, classes) and (1, n, 32) for each of 3 feature maps (NanoDet)",
    preprocess=_PREPROCESS,
)
PLUS = DecoderSpec.of(NanoDetPlusDecoder, "(1, N, classes + 32) (NanoDet-Plus)", preprocess=_PREPROCESS)
PICODET = DecoderSpec.of(
    PicoDetDecoder,
    "(1, n, classes) and (1, n, 32) for each of 4 feature maps (PP-PicoDet)",
    # configs/picodet/_base_/picodet_320_reader.yml: ImageNet's mean and deviation, the image stretched.
    preprocess={"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
)
