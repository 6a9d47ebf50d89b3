"""Base of decoders that read one row per candidate: best class of each row, then the threshold, then the boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from multi_dnn_ros.decoders.base import LIMIT, MAX_CANDIDATES, Decoder, TwoParts, expect_finite, total_of
from multi_dnn_ros.decoders.layout import Difference, Layout, Match
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Detections, OutputError

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Views of the outputs. raw: (N, K), what boxes are computed from. scores: (N, classes), probabilities. objectness:
    (N,), factors of the scores; None: 1.
    """

    raw: Tensor
    scores: Tensor
    objectness: Tensor | None = None


def with_objectness(output: Tensor) -> Rows:
    """Rows of an output (1, N, 5 + classes): four numbers of the box, objectness, a probability per class."""
    rows = output[0]
    return Rows(rows[:, :4], rows[:, 5:], rows[:, 4])


class RecognizedDecoder(Decoder):
    """A decoder whose `recognize` decides which outputs fit: in :meth:`check`, and if no decoder is configured."""

    #: Shapes of the outputs that it reads, for messages.
    signature: ClassVar[str] = ""

    @classmethod
    def recognize(cls, layout: Layout) -> Match | Difference:
        """Whether this decoder reads such outputs."""
        raise NotImplementedError

    def check(self, outputs: Sequence[Tensor]) -> None:
        layout = Layout(
            tuple(tuple(output.shape) for output in outputs),
            (self.preprocess.width, self.preprocess.height),
            len(self.labels),
        )
        found = self.recognize(layout)
        if isinstance(found, Difference):
            raise OutputError(
                f"outputs of shapes {layout}, but decoder {self.name} with {len(self.labels)} classes reads "
                f"{self.signature}: {found.text}"
            )


class RowDecoder(RecognizedDecoder):
    """Finds the best class of each row, and computes the boxes of those rows whose score reaches the threshold.

    Scores and objectness must be in 0..1.
    """

    #: Whether non-maximum suppression is applied.
    suppress: ClassVar[bool] = True

    def rows(self, outputs: Sequence[Tensor]) -> Rows:
        """The rows of checked float32 outputs on any device. No shape or branch depends on values."""
        raise NotImplementedError

    def corners(self, raw: Floats, index: Integers) -> Floats:
        """(K, 4) x1, y1, x2, y2 in input pixels of the rows `index`. raw: (K, ...), their `Rows.raw`."""
        raise NotImplementedError

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Detections:
        raw, scores, objectness = self.rows(outputs)
        index: Integers = np.arange(len(raw))
        values = scores.numpy()
        if objectness is not None:
            # The product is at most the objectness, so the classes of most rows need not be read.
            index = np.flatnonzero(objectness.numpy() >= self.score_threshold)
            values = values[index] * objectness.numpy()[index, None]
        best = values.max(axis=1, initial=0.0)
        chosen = np.flatnonzero(best >= self.score_threshold)
        index = index[chosen]
        return self.report(raw.numpy()[index], best[chosen], values[chosen].argmax(axis=1), index, source_size)

    def report(
        self, raw: Floats, scores: Floats, class_ids: Integers, index: Integers, source_size: tuple[int, int]
    ) -> Detections:
        """Rows over the threshold, in the order of the outputs -> detections."""
        boxes = self.corners(raw.clip(-LIMIT, LIMIT), index)
        if self.suppress:
            return self.select(boxes, scores, class_ids, source_size)
        return report_ranked(self, boxes, scores, class_ids, source_size)

    def in_two_parts(self) -> TwoParts | None:
        """The first part keeps the best MAX_CANDIDATES rows, each with the score of its best class only."""
        return _BestRows(self)


class _BestRows:
    """The two parts of `decoder`: the raw outputs are megabytes per frame; only the best rows are copied to the CPU."""

    def __init__(self, decoder: RowDecoder) -> None:
        self._decoder = decoder

    def condense(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Raw outputs on any device -> best scores (K,), their classes (K,), indices of the rows (K,), raw rows
        (K, ...) and the total of the outputs ()."""
        total = torch.stack([total_of(output) for output in outputs]).sum()
        raw, scores, objectness = self._decoder.rows([output.float() for output in outputs])
        best, class_ids = scores.max(dim=1)
        if objectness is not None:
            best = best * objectness
        best, index = best.topk(min(MAX_CANDIDATES, len(best)))
        return best, class_ids[index], index, raw[index], total

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Detections:
        """Result of condense(), on the CPU, and the source image's (H, W). OutputError for NaN or infinity."""
        scores, class_ids, index, raw, total = outputs
        expect_finite("the outputs", total)
        values, rows = scores.numpy(), index.numpy()
        chosen = np.flatnonzero(values >= self._decoder.score_threshold)
        chosen = chosen[np.argsort(rows[chosen])]  # the order of the undivided decoder, which decides ties
        return self._decoder.report(
            raw.numpy()[chosen], values[chosen], class_ids.numpy()[chosen], rows[chosen], source_size
        )


def report_ranked(
    decoder: Decoder, boxes: Floats, scores: Floats, class_ids: Integers, source_size: tuple[int, int]
) -> Detections:
    """Boxes (N, 4) in input pixels of a network that leaves no duplicates -> those of the kept classes over the
    threshold, best first; equal scores stay in order. No non-maximum suppression.

    Raises OutputError for a class without a name.
    """
    chosen = scores >= decoder.score_threshold
    ids = class_ids[chosen]
    if len(ids) and not 0 <= ids.min() <= ids.max() < len(decoder.labels):
        wrong = int(ids.max() if ids.max() >= len(decoder.labels) else ids.min())
        raise OutputError(f"class {wrong} in the outputs; labels has {len(decoder.labels)} names")
    if decoder.kept:
        chosen &= np.isin(class_ids, decoder.kept)
    index = np.flatnonzero(chosen)
    index = index[np.argsort(-scores[index], kind="stable")]
    corners = decoder.preprocess.geometry(source_size).to_source(boxes[index])
    return decoder.finish(corners, scores[index], class_ids[index], source_size)


def from_shares(raw: Floats, preprocess: Preprocess) -> Floats:
    """(K, 4) center x, y, width, height as shares of the input -> x1, y1, x2, y2 in input pixels."""
    return from_centers(raw * np.array([preprocess.width, preprocess.height] * 2, np.float32))


def from_centers(raw: Floats) -> Floats:
    """(K, 4) center x, y, width, height -> x1, y1, x2, y2. Negative sizes count as 0."""
    center, half = raw[:, :2], raw[:, 2:4].clip(min=0) / 2
    return np.concatenate([center - half, center + half], axis=1)
