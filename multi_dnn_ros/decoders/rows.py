"""Base of decoders that read one row per candidate: best class of each row, then the threshold, then the boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from multi_dnn_ros.decoders.arrays import Floats, Integers, Values
from multi_dnn_ros.decoders.base import LIMIT, MAX_CANDIDATES, Decoder, TwoParts, expect_finite, total_of
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Detections

if TYPE_CHECKING:
    from torch import Tensor


class Rows(NamedTuple):
    """Views of the outputs. raw: (N, K), what boxes are computed from. scores: (N, classes), probabilities. objectness:
    (N,), factors of the scores; None: 1.
    """

    raw: Values
    scores: Values
    objectness: Values | None = None


def with_objectness(output: Values) -> Rows:
    """Rows of an output (1, N, 5 + classes): four numbers of the box, objectness, a probability per class."""
    rows = output[0]
    return Rows(rows[:, :4], rows[:, 5:], rows[:, 4])


class RowDecoder(Decoder):
    """Finds the best class of each row, and computes the boxes of those rows whose score reaches the threshold.

    Scores and objectness must be in 0..1.
    """

    #: Whether non-maximum suppression is applied.
    suppress: ClassVar[bool] = True

    def rows(self, outputs: Sequence[Values]) -> Rows:
        """The rows of checked outputs: arrays, or float32 tensors on a device. No shape or branch depends on values."""
        raise NotImplementedError

    def corners(self, raw: Floats, index: Integers) -> Floats:
        """(K, 4) x1, y1, x2, y2 in input pixels of the rows `index`. raw: (K, ...), their `Rows.raw`."""
        raise NotImplementedError

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Detections:
        raw, scores, objectness = self.rows(outputs)
        index: Integers = np.arange(len(raw))
        if objectness is not None:
            # The product is at most the objectness, so the classes of most rows need not be read.
            index = np.flatnonzero(objectness >= self.score_threshold)
            scores = scores[index] * objectness[index, None]
        best = scores.max(axis=1, initial=0.0)
        chosen = np.flatnonzero(best >= self.score_threshold)
        index = index[chosen]
        return self.report(raw[index], best[chosen], scores[chosen].argmax(axis=1), index, source_size)

    def report(
        self, raw: Floats, scores: Floats, class_ids: Integers, index: Integers, source_size: tuple[int, int]
    ) -> Detections:
        """Rows over the threshold, in the order of the outputs -> detections."""
        boxes = self.corners(raw.clip(-LIMIT, LIMIT), index)
        select = self.select if self.suppress else self.select_ranked
        return select(boxes, scores, class_ids, source_size)

    def in_two_parts(self) -> TwoParts | None:
        """The first part keeps the best MAX_CANDIDATES rows, each with the score of its best class only."""
        return TwoParts(self.reduce, self.decode_reduced)

    def reduce(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Raw outputs on any device -> best scores (K,), their classes (K,), indices of the rows (K,), raw rows
        (K, ...) and the total of the outputs ().
        """
        total = sum(total_of(output) for output in outputs)
        raw, scores, objectness = self.rows([output.float() for output in outputs])
        best, class_ids = scores.max(dim=1)
        if objectness is not None:
            best = best * objectness
        best, index = best.topk(min(MAX_CANDIDATES, len(best)))
        return best, class_ids[index], index, raw[index], total  # type: ignore[return-value]

    def decode_reduced(self, reduced: Sequence[Values], source_size: tuple[int, int]) -> Detections:
        """Result of reduce(), on the CPU, and the source image's (H, W). OutputError for NaN or infinity."""
        scores, class_ids, index, raw, total = map(np.asarray, reduced)
        expect_finite("the outputs", float(total))
        chosen = np.flatnonzero(scores >= self.score_threshold)
        chosen = chosen[np.argsort(index[chosen])]  # the order of the undivided decoder, which decides ties
        return self.report(raw[chosen], scores[chosen], class_ids[chosen], index[chosen], source_size)


def from_shares(raw: Floats, preprocess: Preprocess) -> Floats:
    """(K, 4) center x, y, width, height as shares of the input -> x1, y1, x2, y2 in input pixels."""
    return from_centers(raw * np.array([preprocess.width, preprocess.height] * 2, np.float32))


def from_centers(raw: Floats) -> Floats:
    """(K, 4) center x, y, width, height -> x1, y1, x2, y2. Negative sizes count as 0."""
    center, half = raw[:, :2], raw[:, 2:4].clip(min=0) / 2
    return np.concatenate([center - half, center + half], axis=1)
