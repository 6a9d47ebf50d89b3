"""Semantic segmentation: the class of each pixel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from multi_dnn_ros.decoders.base import Decoder, Floats, Values, library, logsumexp, sigmoid
from multi_dnn_ros.decoders.lane_map import without_padding
from multi_dnn_ros.decoders.layout import POSSIBLE, Difference, Layout
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import NO_CLASS, Mask

#: Default threshold of a network with one class, which competes with no other.
_ONE_CLASS = 0.5


class SegmentationDecoder(Decoder):
    """(1, classes, h, w) logits of any resolution -> Mask.

    Each pixel gets its most probable class (softmax), or none if its probability is under `score_threshold` or `keep`
    does not name the class. With score_threshold 0 there is no threshold. With one class, the probability is the
    logit's sigmoid, and a score_threshold of 0 means 0.5. `iou_threshold` and `max_detections` have no effect.
    """

    name = "segmentation"
    signature = "(1, classes, h, w) logits: semantic segmentation with at most 255 classes"
    result_kind = "semantic_mask"
    patterns = ((1, "classes", "h", "w"),)

    def __init__(self, preprocess: Preprocess, labels: Sequence[str], **options: Any) -> None:
        super().__init__(preprocess, labels, **{**options, "own_threshold": 0.0})
        #: What a pixel of each class becomes: the class, or NO_CLASS.
        self._class_ids = np.array(
            [index if not self.kept or index in self.kept else NO_CLASS for index in range(len(labels))], np.uint8
        )

    @classmethod
    def check_labels(cls, labels: Sequence[str], keep: Sequence[str]) -> None:
        """As in the base class; at most 255 classes, because masks are uint8 and 255 means none."""
        super().check_labels(labels, keep)
        if len(labels) > NO_CLASS:
            raise ValueError(f"labels has {len(labels)} names; allowed for a mask: at most {NO_CLASS}")

    @classmethod
    def certainty(cls, axes: Counter[str], layout: Layout) -> tuple[int, str] | Difference:
        """A map for each of three classes or more. One or two usually show one thing, such as lanes."""
        if not 3 <= axes["classes"] <= NO_CLASS:
            return Difference(f"{axes['classes']} maps; expected 3 to {NO_CLASS}", 1.0)
        return POSSIBLE, "a map for each of several classes"

    @property
    def threshold(self) -> float:
        """The smallest probability that counts; 0: no threshold."""
        return self.score_threshold or (_ONE_CLASS if len(self.labels) == 1 else 0.0)

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Mask:
        logits = outputs[0][0]
        probability = best_probability(logits) if self.threshold > 0.0 else np.ones(logits.shape[1:], np.float32)
        return self.decode_reduced((logits.argmax(0), probability), source_size)

    def reduce(self, outputs: Sequence[Values]) -> tuple[Values, ...]:
        """Classes (h, w) uint8 and their probabilities (h, w): five bytes per pixel are copied instead of the maps."""
        logits = outputs[0][0]
        return logits.argmax(0).byte(), best_probability(logits)

    def decode_reduced(self, reduced: Sequence[Any], source_size: tuple[int, int]) -> Mask:
        classes, probability = reduced
        found = self._class_ids[classes]
        found[probability < self.threshold] = NO_CLASS
        content = np.ascontiguousarray(without_padding(found, self.preprocess, source_size))
        return Mask(content, self.labels, source_size)


def best_probability(logits: Values) -> Values:
    """(classes, h, w) logits, an array or a tensor -> (h, w) probability of the most probable class."""
    if len(logits) == 1:
        return sigmoid(logits[0])
    lib = library(logits)
    return lib.exp(lib.amax(logits, 0) - logsumexp(logits))


SPEC = DecoderSpec.of(SegmentationDecoder)
