"""Semantic segmentation: the class of each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.decoders.arrays import Floats, Values, exp, largest, logsumexp, sigmoid
from multi_dnn_ros.decoders.base import Decoder, TwoParts, expect_finite
from multi_dnn_ros.decoders.lane_map import without_padding
from multi_dnn_ros.decoders.layout import POSSIBLE, Difference, Layout, Match
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import NO_CLASS, Mask

if TYPE_CHECKING:
    from torch import Tensor

#: Default threshold of a network with one class, which competes with no other.
_ONE_CLASS = 0.5


class SegmentationDecoder(Decoder):
    """(1, classes, h, w) logits of any resolution -> Mask.

    Each pixel gets its most probable class (softmax), or none if its probability is under `score_threshold` or `keep`
    does not name the class. With score_threshold 0 there is no threshold. With one class, the probability is the
    logit's sigmoid, and a score_threshold of 0 means 0.5. `iou_threshold` and `max_detections` have no effect.
    """

    name = "segmentation"
    signature = "(1, classes, h, w)"
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
    def fits(cls, layout: Layout) -> Match | Difference:
        return cls.matches_patterns(layout)

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        """A map for each of three classes or more. One or two usually show one thing, such as lanes."""
        found = cls.matches_patterns(layout)
        if isinstance(found, Difference):
            return found
        if not 3 <= found.classes <= NO_CLASS:
            return Difference(f"{found.classes} maps; expected 3 to {NO_CLASS}", 1.0)
        return Match(POSSIBLE, "a map for each of several classes", found.classes)

    @property
    def threshold(self) -> float:
        """The smallest probability that counts; 0: no threshold."""
        return self.score_threshold or (_ONE_CLASS if len(self.labels) == 1 else 0.0)

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Mask:
        logits = outputs[0][0]
        probability = best_probability(logits) if self.threshold > 0.0 else np.ones(logits.shape[1:], np.float32)
        return self._mask(logits.argmax(0), probability, source_size)

    def in_two_parts(self) -> TwoParts:
        """The first part finds the class of each pixel: five bytes per pixel are copied instead of the maps."""
        return TwoParts(self.reduce, self.decode_reduced)

    def reduce(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """(1, classes, h, w) logits on any device -> classes (h, w) uint8 and their probabilities (h, w)."""
        logits = outputs[0][0].float()
        return logits.argmax(0).byte(), best_probability(logits)

    def decode_reduced(self, reduced: Sequence[Values], source_size: tuple[int, int]) -> Mask:
        """Result of reduce(), on the CPU, and the source image's (H, W). OutputError for NaN or infinity."""
        classes, probability = map(np.asarray, reduced)
        expect_finite("the outputs", float(probability.sum(dtype=np.float64)))
        return self._mask(classes, probability, source_size)

    def _mask(self, classes: npt.NDArray[Any], probability: Floats, source_size: tuple[int, int]) -> Mask:
        found = self._class_ids[classes]
        found[probability < self.threshold] = NO_CLASS
        content = np.ascontiguousarray(without_padding(found, self.preprocess, source_size))
        return Mask(content, self.labels, source_size)


def best_probability(logits: Values) -> Values:
    """(classes, h, w) logits, an array or a tensor -> (h, w) probability of the most probable class."""
    if len(logits) == 1:
        return sigmoid(logits[0])
    return exp(largest(logits, 0) - logsumexp(logits))


SPEC = DecoderSpec.of(
    SegmentationDecoder,
    "(1, classes, h, w) logits: semantic segmentation with at most 255 classes",
    result_kind="semantic_mask",
)
