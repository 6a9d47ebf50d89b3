"""Drivable area: the pixels where the probability of one class, or of several, is high enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from multi_dnn_ros.decoders.base import HostValue, TwoParts, expect_finite, total_of
from multi_dnn_ros.decoders.lane import LaneDecoder
from multi_dnn_ros.decoders.maps import without_padding
from multi_dnn_ros.decoders.registry import DecoderSpec
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

    def in_two_parts(self) -> TwoParts:
        """The first part finds the drivable pixels."""
        return _AreaParts(self)

    def decode_map(self, lane: torch.Tensor, source_size: tuple[int, int]) -> Mask:
        """Decode a map (h, w) float32 of logits of drivable against the rest, on the CPU."""
        return self.mask(lane.contiguous().numpy() >= self.logit_threshold, source_size)

    def mask(self, inside: npt.NDArray[np.bool_], source_size: tuple[int, int]) -> Mask:
        """Whether each pixel (h, w) of the map is drivable -> Mask."""
        numbers = np.where(without_padding(inside, self.preprocess, source_size), np.uint8(0), np.uint8(NO_CLASS))
        return Mask(numbers, ("drivable",), source_size)


class _AreaParts:
    """The two parts of `decoder`: one byte per pixel is copied instead of the maps of all classes."""

    def __init__(self, decoder: DrivableDecoder) -> None:
        self._decoder = decoder
        self._threshold = HostValue()

    def condense(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """(1, classes, h, w) logits -> whether each pixel is drivable (h, w), and the sum of logits ()."""
        logits = outputs[0][0].float()
        self._threshold.set(self._decoder.logit_threshold)
        return self._decoder.lane_logits(logits) >= self._threshold.on(logits.device), total_of(logits)

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Mask:
        """Result of condense(), on the CPU, and the source's (H, W) -> Mask. OutputError for NaN or infinity."""
        inside, total = map(np.asarray, outputs)
        expect_finite("output 0", float(total))
        self._threshold.set(self._decoder.logit_threshold)  # for the next frame
        return self._decoder.mask(inside, source_size)


SPEC = DecoderSpec(
    "drivable",
    DrivableDecoder,
    signature="(1, classes, h, w) logits: drivable area (TwinLiteNet), named by keep or the second of two",
    result_kind="drivable_area",
    default_labels=("none", "drivable"),
)
