"""YOLOP: boxes of vehicles, drivable area and lane lines from one network; a decoder for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from multi_dnn_ros.decoders.base import IMAGENET, LETTERBOX, Decoder, Values, library
from multi_dnn_ros.decoders.lane_map import DrivableDecoder, MapDecoder, TwinLiteNetDecoder
from multi_dnn_ros.decoders.layout import EXACT, LIKELY, Layout, Pattern, strides_of
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.decoders.yolo import ANCHORS, YoloV5Decoder

_INPUT = {**LETTERBOX, **IMAGENET}
#: Smallest probability whose logarithm is taken.
_MIN_PROBABILITY = 1e-6


def _certainty(cls: type[Decoder], axes: Counter[str], layout: Layout) -> tuple[int, str]:
    certainty = EXACT if strides_of(layout.size, axes["N"], ANCHORS) else LIKELY
    return certainty, f"boxes of {axes['boxes'] or axes['classes'] or '?'} classes and two maps of two classes"


class YolopDecoder(YoloV5Decoder):
    """(1, N, 5 + classes) and twice (1, 2, h, w) -> the boxes of the first output, which has YOLOv5's layout.

    cx, cy, w, h in input pixels, objectness, a probability per class; score = objectness * class probability.
    github.com/hustvl/YOLOP, arXiv:2108.11250.
    """

    name = "yolop"
    signature = "(1, N, 5 + classes), twice (1, 2, h, w): the boxes (YOLOP)"
    patterns: ClassVar[Sequence[Pattern]] = ((1, "N", ("classes", 5)), (1, 2, "h", "w"), (1, 2, "h", "w"))
    default_labels = ("vehicle",)

    certainty = classmethod(_certainty)


class _ProbabilityMaps(MapDecoder):
    """Reads probabilities of two classes, which need not sum to 1, instead of logits.

    The probability at a pixel is that of the second class divided by their sum, so that a threshold of 0.5 selects the
    larger of the two, as the reference does.
    """

    patterns: ClassVar[Sequence[Pattern]] = ((1, "N", ("boxes", 5)), *[(1, "classes", "h", "w")] * 2)

    certainty = classmethod(_certainty)

    def chosen_logits(self, logits: Values) -> Values:
        return super().chosen_logits(library(logits).log(logits.clip(_MIN_PROBABILITY, None)))


class YolopLaneDecoder(_ProbabilityMaps, TwinLiteNetDecoder):
    """The same outputs -> lane lines of the second map."""

    name = "yolop_lanes"
    signature = "(1, N, 5 + classes), twice (1, 2, h, w): the lane lines of the last map (YOLOP)"


class YolopDrivableDecoder(_ProbabilityMaps, DrivableDecoder):
    """The same outputs -> the drivable area of the first map.

    Decoder `drivable` reads logits. Given probabilities, it would accept every pixel with a threshold below 0.27, and
    none with one above 0.73.
    """

    name = "yolop_drivable"
    signature = "(1, N, 5 + classes), twice (1, 2, h, w): the drivable area of the first map (YOLOP)"

    def maps(self, outputs: Sequence[Values]) -> Values:
        return next(output for output in outputs if output.ndim == 4)[0]


SPEC = DecoderSpec.of(YolopDecoder, preprocess=_INPUT)
LANES = DecoderSpec.of(YolopLaneDecoder, preprocess=_INPUT)
DRIVABLE = DecoderSpec.of(YolopDrivableDecoder, preprocess=_INPUT)
