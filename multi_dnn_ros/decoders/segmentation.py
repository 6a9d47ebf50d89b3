"""Semantic segmentation: the class of each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from multi_dnn_ros.decoders.base import Decoder, HostValue, TwoParts, expect_finite, total_of
from multi_dnn_ros.decoders.layout import POSSIBLE, Difference, Layout, Match, match_classes
from multi_dnn_ros.decoders.maps import without_padding
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import NO_CLASS, Mask, OutputError

#: Default threshold of a network with one class, which competes with no other.
_ONE_CLASS = 0.5


class SegmentationDecoder(Decoder):
    """(1, classes, h, w) logits of any resolution -> Mask.

    Each pixel gets its most probable class (softmax), or none if its probability is under `score_threshold` or `keep`
    does not name the class. With score_threshold 0 there is no threshold. With one class, the probability is the
    logit's sigmoid, and a score_threshold of 0 means 0.5. `iou_threshold` and `max_detections` have no effect.
    """

    name = "segmentation"

    def __init__(self, preprocess: Preprocess, labels: Sequence[str], **options: Any) -> None:
        super().__init__(preprocess, labels, **{**options, "own_threshold": 0.0})

    @classmethod
    def check_labels(cls, labels: Sequence[str], keep: Sequence[str]) -> None:
        """As in the base class; at most 255 classes, because masks are uint8 and 255 means none."""
        super().check_labels(labels, keep)
        if len(labels) > NO_CLASS:
            raise ValueError(f"labels has {len(labels)} names; allowed for a mask: at most {NO_CLASS}")

    def check(self, outputs: Sequence[Tensor]) -> None:
        self.expect_outputs(outputs, 1)
        shape = tuple(outputs[0].shape)
        if len(shape) != 4 or shape[:2] != (1, len(self.labels)) or min(shape) < 1:
            raise OutputError(
                f"output of shape {shape}, but decoder segmentation with {len(self.labels)} class(es) reads "
                f"(1, {len(self.labels)}, h, w)"
            )

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Mask:
        found = class_map(outputs[0][0], torch.tensor(self.threshold), self.class_ids())
        return self.mask(found.numpy(), source_size)

    def in_two_parts(self) -> TwoParts:
        """The first part finds the class of each pixel."""
        return _ClassMap(self)

    @property
    def threshold(self) -> float:
        """The smallest probability that counts; 0: no threshold."""
        return self.score_threshold or (_ONE_CLASS if len(self.labels) == 1 else 0.0)

    def class_ids(self) -> torch.Tensor:
        """(classes,) uint8, what a pixel of each class becomes: the class, or NO_CLASS."""
        return torch.tensor(
            [index if not self.kept or index in self.kept else NO_CLASS for index in range(len(self.labels))],
            dtype=torch.uint8,
        )

    def mask(self, found: npt.NDArray[np.uint8], source_size: tuple[int, int]) -> Mask:
        """Class (h, w) of each pixel of the map -> Mask."""
        content = np.ascontiguousarray(without_padding(found, self.preprocess, source_size))
        return Mask(content, self.labels, source_size)


def class_map(logits: Tensor, threshold: Tensor, class_ids: Tensor) -> Tensor:
    """(classes, h, w) float32 -> (h, w) uint8: entry of `class_ids` for the most probable class, NO_CLASS if its
    probability is under `threshold` (); on any device, without synchronization.
    """
    found = class_ids[logits.argmax(0)]
    return torch.where(best_probability(logits) >= threshold, found, NO_CLASS)


def best_probability(logits: Tensor) -> Tensor:
    """(classes, h, w) float32 -> (h, w) probability of the most probable class."""
    if len(logits) == 1:
        return logits[0].sigmoid()
    return (logits.amax(0) - logits.logsumexp(0)).exp()


class _ClassMap:
    """The two parts of `decoder`: one byte per pixel is copied instead of the maps of all classes."""

    def __init__(self, decoder: SegmentationDecoder) -> None:
        self._decoder = decoder
        self._threshold = HostValue()
        self._class_ids = decoder.class_ids()

    def condense(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """(1, classes, h, w) logits on any device -> classes (h, w) uint8, sum of logits ()."""
        logits = outputs[0][0].float()
        self._threshold.set(self._decoder.threshold)
        self._class_ids = self._class_ids.to(logits.device)  # copied in the first call, before a capture
        return class_map(logits, self._threshold.on(logits.device), self._class_ids), total_of(logits)

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Mask:
        """Result of condense(), on the CPU, and the source image's (H, W). OutputError for NaN or infinity."""
        found, total = map(np.asarray, outputs)
        expect_finite("output 0", float(total))
        self._threshold.set(self._decoder.threshold)  # for the next frame
        return self._decoder.mask(found, source_size)


def recognize(layout: Layout) -> Match | Difference:
    """Whether SegmentationDecoder reads such outputs: a map for each of three classes or more.

    One or two maps usually show one thing, such as lanes, against background.
    """
    found = match_classes(layout, [(1, "classes", "h", "w")])
    if isinstance(found, Difference):
        return found
    classes = found.axes.get("classes", 0)
    if not 3 <= classes <= NO_CLASS:
        return Difference(f"{classes} maps; expected 3 to {NO_CLASS}", 1.0)
    return Match(POSSIBLE, "a map for each of several classes", classes)


SPEC = DecoderSpec(
    "segmentation",
    SegmentationDecoder,
    signature="(1, classes, h, w) logits: semantic segmentation with at most 255 classes",
    result_kind="semantic_mask",
    recognize=recognize,
)
