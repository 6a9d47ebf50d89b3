"""YOLOP: boxes of vehicles, drivable area and lane lines from one network; a decoder for each."""

from __future__ import annotations

from collections.abc import Sequence

from multi_dnn_ros.decoders.arrays import Floats, Integers, Values, log
from multi_dnn_ros.decoders.lane_map import DrivableDecoder, MapDecoder, TwinLiteNetDecoder
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
from multi_dnn_ros.decoders.rows import RowDecoder, Rows, from_centers, with_objectness

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
        return found if isinstance(found, Difference) else _match(layout, found, found.axes.get("classes", 0))

    def rows(self, outputs: Sequence[Values]) -> Rows:
        (boxes,) = (output for output in outputs if output.ndim == 3)
        return with_objectness(boxes)

    def corners(self, raw: Floats, index: Integers) -> Floats:
        return from_centers(raw)


class _ProbabilityMaps(MapDecoder):
    """Reads probabilities of two classes, which need not sum to 1, instead of logits.

    The probability at a pixel is that of the second class divided by their sum, so that a threshold of 0.5 selects the
    larger of the two, as the reference does.
    """

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        found = match(layout, _PATTERNS)
        return found if isinstance(found, Difference) else _match(layout, found, 0)

    def chosen_logits(self, logits: Values) -> Values:
        return super().chosen_logits(log(logits.clip(_MIN_PROBABILITY, None)))


class YolopLaneDecoder(_ProbabilityMaps, TwinLiteNetDecoder):
    """The same outputs -> lane lines of the second map."""

    name = "yolop_lanes"
    signature = YolopDecoder.signature


class YolopDrivableDecoder(_ProbabilityMaps, DrivableDecoder):
    """The same outputs -> the drivable area of the first map.

    Decoder `drivable` reads logits. Given probabilities, it would accept every pixel with a threshold below 0.27, and
    none with one above 0.73.
    """

    name = "yolop_drivable"
    signature = YolopDecoder.signature

    def maps(self, outputs: Sequence[Values]) -> Values:
        return next(output for output in outputs if output.ndim == 4)[0]


def _match(layout: Layout, found: Bound, classes: int) -> Match:
    certainty = EXACT if strides_of(layout.size, found.axes.get("N", 0), _ANCHORS) else LIKELY
    return Match(
        certainty, f"boxes of {found.axes.get('classes', 0) or '?'} classes and two maps of two classes", classes
    )


_LETTERBOX = {"fit": "letterbox", "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

SPEC = DecoderSpec.of(
    YolopDecoder,
    "(1, N, 5 + classes), twice (1, 2, h, w): the boxes (YOLOP)",
    default_labels=("vehicle",),
    preprocess=_LETTERBOX,
)
LANES = DecoderSpec.of(
    YolopLaneDecoder,
    "(1, N, 5 + classes), twice (1, 2, h, w): the lane lines of the last map (YOLOP)",
    result_kind="lanes",
    default_labels=("none", "lane"),
    preprocess=_LETTERBOX,
)
DRIVABLE = DecoderSpec.of(
    YolopDrivableDecoder,
    "(1, N, 5 + classes), twice (1, 2, h, w): the drivable area of the first map (YOLOP)",
    result_kind="drivable_area",
    default_labels=("none", "drivable"),
    preprocess=_LETTERBOX,
)
