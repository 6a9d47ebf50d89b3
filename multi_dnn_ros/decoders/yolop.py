"""YOLOP: boxes of vehicles, drivable area and lane lines from one network; a decoder for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from multi_dnn_ros.decoders.drivable import DrivableDecoder
from multi_dnn_ros.decoders.layout import (
    EXACT,
    LIKELY,
    Bound,
    Difference,
    Layout,
    Match,
    Pattern,
    match,
    match_classes,
    strides_of,
)
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.rows import Floats, Integers, RowDecoder, Rows, from_centers, with_objectness
from multi_dnn_ros.decoders.twinlitenet import TwinLiteNetDecoder

_ANCHORS = 3
_PATTERNS: tuple[Pattern, ...] = ((1, "N", ("classes", 5)), (1, 2, "h", "w"), (1, 2, "h", "w"))
#: Smallest probability whose logarithm is taken.
_MIN_PROBABILITY = 1e-6


class YolopDecoder(RowDecoder):
    """(1, N, 5 + classes) and twice (1, 2, h, w) -> the boxes of the first output, which has YOLOv5's layout.

    cx, cy, w, h in input pixels, objectness, a probability per class; score = objectness * class probability.
    github.com/hustvl/YOLOP, arXiv:2108.11250.
    """

    name = "yolop"
    signature = "(1, N, 5 + classes) and (1, 2, h, w) twice"

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match_classes(layout, _PATTERNS)
        if isinstance(found, Difference):
            return found
        return Match(_certainty(layout, found), _why(found), found.axes.get("classes", 0))

    def rows(self, outputs: Sequence[Tensor]) -> Rows:
        (boxes,) = (output for output in outputs if output.ndim == 3)
        return with_objectness(boxes)

    def corners(self, raw: Floats, index: Integers) -> Floats:
        return from_centers(raw)


class YolopLaneDecoder(TwinLiteNetDecoder):
    """The same outputs -> lane lines of the second map: probabilities of "none" and "lane", which need not sum to 1.

    The probability of a line at a pixel is that of lane divided by their sum, so that a threshold of 0.5 selects the
    larger of the two, as the reference does.
    """

    name = "yolop_lanes"
    signature = YolopDecoder.signature

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match(layout, _PATTERNS)
        return found if isinstance(found, Difference) else Match(_certainty(layout, found), _why(found))

    def lane_logits(self, logits: Tensor) -> Tensor:
        return super().lane_logits(torch.log(logits.clamp(min=_MIN_PROBABILITY)))


class YolopDrivableDecoder(YolopLaneDecoder, DrivableDecoder):
    """The same outputs -> the drivable area of the first map, which holds probabilities like the map of lines.

    Decoder `drivable` reads logits. Given probabilities, it would accept every pixel with a threshold below 0.27, and
    none with one above 0.73.
    """

    name = "yolop_drivable"
    map_number = 0


def _certainty(layout: Layout, found: Bound) -> int:
    return EXACT if strides_of(layout.size, found.axes.get("N", 0), _ANCHORS) else LIKELY


def _why(found: Bound) -> str:
    return f"boxes of {found.axes.get('classes', 0) or '?'} classes and two maps of two classes"


_LETTERBOX = {"fit": "letterbox", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

SPEC = DecoderSpec(
    "yolop",
    YolopDecoder,
    signature="(1, N, 5 + classes), twice (1, 2, h, w): the boxes (YOLOP)",
    default_labels=("vehicle",),
    preprocess=_LETTERBOX,
    recognize=YolopDecoder.recognize,
)
LANES = DecoderSpec(
    "yolop_lanes",
    YolopLaneDecoder,
    signature="(1, N, 5 + classes), twice (1, 2, h, w): the lane lines of the last map (YOLOP)",
    result_kind="lanes",
    default_labels=("none", "lane"),
    preprocess=_LETTERBOX,
    recognize=YolopLaneDecoder.recognize,
)
DRIVABLE = DecoderSpec(
    "yolop_drivable",
    YolopDrivableDecoder,
    signature="(1, N, 5 + classes), twice (1, 2, h, w): the drivable area of the first map (YOLOP)",
    result_kind="drivable_area",
    default_labels=("none", "drivable"),
    preprocess=_LETTERBOX,
    recognize=YolopDrivableDecoder.recognize,
)
