"""Base of decoders that read one row per candidate: best class of each row, then the threshold, then the boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from multi_dnn_ros.decoders.base import LIMIT, MAX_CANDIDATES, Decoder, Floats, Integers, Values
from multi_dnn_ros.decoders.layout import Bound, Difference, Layout, row_count
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Detections


class Rows(NamedTuple):
    """Views of the outputs. raw: (N, K), what boxes are computed from. scores: (N, classes), probabilities. objectness:
    (N,), factors of the scores; None: 1.
    """

    raw: Values
    scores: Values
    objectness: Values | None = None


class RowDecoder(Decoder):
    """Finds the best class of each row, and computes the boxes of those rows whose score reaches the threshold.

    Scores and objectness must be in 0..1.
    """

    #: Whether non-maximum suppression is applied.
    suppressed: ClassVar[bool] = True
    #: Strides that the feature maps may have, if there is one row per cell, their number being axis N; empty: any rows.
    strides: ClassVar[Sequence[tuple[int, ...]]] = ()

    @classmethod
    def matches(cls, layout: Layout) -> Bound | Difference:
        found = super().matches(layout)
        if isinstance(found, Difference) or not cls.strides or layout.size is None or not found.axes["N"]:
            return found
        counts = [row_count(layout.size, strides) for strides in cls.strides]
        if found.axes["N"] in counts:
            return found
        allowed, (width, height) = " or ".join(map(str, counts)), layout.size
        return Difference(f"{found.axes['N']} rows; one per cell of an input of {width} x {height} is {allowed}", 0.7)

    def rows(self, outputs: Sequence[Values]) -> Rows:
        """The rows of checked outputs: arrays, or float32 tensors on a device. No shape or branch depends on values."""
        raise NotImplementedError

    def corners(self, raw: Floats, index: Integers) -> Floats:
        """(K, 4) x1, y1, x2, y2 in input pixels of the rows `index`. raw: (K, ...), their `Rows.raw`. Here: center x,
        center y, width, height in input pixels.
        """
        return from_centers(raw)

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
        return self.select(boxes, scores, class_ids, source_size, suppressed=self.suppressed)

    def reduce(self, outputs: Sequence[Values]) -> tuple[Values, ...]:
        """The best MAX_CANDIDATES rows: best scores (K,), their classes (K,), indices of the rows (K,), raw rows
        (K, ...), and the total of the outputs (), which is finite if and only if all of them are.
        """
        import torch

        raw, scores, objectness = self.rows(outputs)
        best, class_ids = scores.max(dim=1)
        if objectness is not None:
            best = best * objectness
        best, index = best.topk(min(MAX_CANDIDATES, len(best)))
        total: Any = sum(output.sum(dtype=torch.float64) for output in outputs)
        return best, class_ids[index], index, raw[index], total

    def decode_reduced(self, reduced: Sequence[Any], source_size: tuple[int, int]) -> Detections:
        scores, class_ids, index, raw, _ = reduced
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
