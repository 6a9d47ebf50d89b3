"""Drivable area: the pixels where the probability of one class, or of several, is high enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from multi_dnn_ros.vision.decoders.lane import LaneDecoder
from multi_dnn_ros.vision.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import NO_CLASS, Mask


class DrivableDecoder(LaneDecoder):
    """(1, classes, h, w) logits of any resolution -> Mask with one class.

    One class: logit of drivable against the rest. Several: softmax logits; the drivable classes are those in `keep`, or
    the second of two. A pixel is drivable if its probability is at least `score_threshold`, 0.5 if the parameter is 0.
    `iou_threshold` and `max_detections` have no effect.
    """

    name = "drivable"
    noun = "drivable"

    def __init__(self, preprocess: Preprocess, labels: Sequence[str], **options: Any) -> None:
        super().__init__(preprocess, labels, **{**options, "own_threshold": 0.5})

    def decode_map(self, lane: torch.Tensor, source_size: tuple[int, int]) -> Mask:
        """Decode a map (h, w) float32 of logits of drivable against the rest, on the CPU."""
        logits = self.content(lane.contiguous().numpy(), source_size)
        threshold = min(max(self.score_threshold, 1e-6), 1.0 - 1e-6)
        inside = logits >= math.log(threshold / (1.0 - threshold))
        return Mask(np.where(inside, np.uint8(0), np.uint8(NO_CLASS)), ("drivable",), source_size)


SPEC = DecoderSpec(
    "drivable",
    DrivableDecoder,
    signature="(1, classes, h, w) logits: drivable area (TwinLiteNet), named by keep or the second of two",
    result_kind="drivable_area",
    default_labels=("none", "drivable"),
)
