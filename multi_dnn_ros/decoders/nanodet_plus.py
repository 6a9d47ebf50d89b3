"""NanoDet-Plus: NanoDet's rows in one output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from multi_dnn_ros.decoders.layout import (
    EXACT,
    POSSIBLE,
    Difference,
    Layout,
    Match,
    match_classes,
    strides_of,
)
from multi_dnn_ros.decoders.nanodet import PREPROCESS, SIDES, NanoDetDecoder
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import Rows

_STRIDES = ((8, 16, 32, 64), (8, 16, 32))


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
        found = match_classes(layout, [(1, "N", ("classes", SIDES))])
        if isinstance(found, Difference):
            return found
        count, classes = found.axes.get("N", 0), found.axes.get("classes", 0)
        if layout.size is None or not count:
            return Match(POSSIBLE, f"rows of more than {SIDES} numbers", classes)
        strides = strides_of(layout.size, count, allowed=_STRIDES)
        if strides is None:
            return Difference(f"{count} rows, which is not one per cell of 4 feature maps", 0.8)
        # Without class names, an output for three feature maps is more probably YOLOX's.
        certainty = EXACT if layout.classes or len(strides) == 4 else POSSIBLE
        return Match(certainty, f"{count} rows are one per cell at strides {', '.join(map(str, strides))}", classes)

    def rows(self, outputs: Sequence[Tensor]) -> Rows:
        rows = outputs[0][0]
        return Rows(rows[:, -SIDES:], rows[:, :-SIDES])


SPEC = DecoderSpec(
    "nanodet_plus",
    NanoDetPlusDecoder,
    signature="(1, N, classes + 32) (NanoDet-Plus)",
    preprocess=PREPROCESS,
    recognize=NanoDetPlusDecoder.recognize,
)
