"""Raw head outputs of torchvision's one-stage detectors (SSD, SSDlite, RetinaNet, FCOS).

These are tens of megabytes per frame, of which a few thousand rows can become boxes. Selecting the rows on a GPU saves
copying the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from multi_dnn_ros.decoders.arrays import Floats, Integers, Values, sigmoid, softmax
from multi_dnn_ros.decoders.base import Decoder, TwoParts, expect_finite, suppress
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Detections, OutputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class AnchorHead:
    """What a detector's outputs mean.

    names, shapes: of its outputs, in order. anchors: (N, 4) float32 x1, y1, x2, y2 in input pixels. level_sizes: number
    of anchors per feature map. max_rows: how many rows per feature map can become boxes; per class if by_class
    (SSD: softmax with class 0 as background; the others have a sigmoid per class). weights: of the offsets from an
    anchor's center and size; None: offsets are the distances of the sides from its center (FCOS), in shares of its
    size if scale_by_size. max_log: upper limit of the logarithm of width and height.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    anchors: Floats
    level_sizes: tuple[int, ...]
    max_rows: int
    by_class: bool
    weights: tuple[float, ...] | None
    max_log: float
    scale_by_size: bool

    def boxes(self, offsets: Floats, rows: Integers) -> Floats:
        """(K, 4) offsets of the boxes from the anchors `rows` (K,) -> (K, 4) x1, y1, x2, y2, as by torchvision."""
        anchors = self.anchors[rows]
        center, size = (anchors[:, :2] + anchors[:, 2:]) / 2, anchors[:, 2:] - anchors[:, :2]
        if self.weights is None:
            if self.scale_by_size:
                offsets = offsets * np.concatenate([size, size], axis=1)
            return np.concatenate([center - offsets[:, :2], center + offsets[:, 2:]], axis=1)
        scaled = offsets / np.asarray(self.weights, np.float32)
        center = scaled[:, :2] * size + center
        half = np.exp(np.minimum(scaled[:, 2:], np.float32(self.max_log))) * size / 2
        return np.concatenate([center - half, center + half], axis=1)


class AnchorDecoder(Decoder):
    """Decodes the outputs that an AnchorHead describes. As in torchvision, a score must be above the threshold."""

    name = "torchvision"

    def __init__(self, head: AnchorHead, preprocess: Preprocess, labels: Sequence[str], **options: Any) -> None:
        super().__init__(preprocess, labels, **options)
        self.head = head
        self._labels_on: dict[torch.device, Tensor] = {}

    def check(self, outputs: Sequence[Values]) -> None:
        found = tuple(tuple(output.shape) for output in outputs)
        if found != self.head.shapes:
            named = ", ".join(f"{name} {shape}" for name, shape in zip(self.head.names, self.head.shapes, strict=True))
            raise OutputError(f"outputs of shapes {', '.join(map(str, found))}; expected for this detector: {named}")

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Detections:
        heads = {name: output[0] for name, output in zip(self.head.names, outputs, strict=True)}
        scores = self._probabilities(heads)
        if self.head.by_class:
            chosen = np.zeros(scores.shape, bool)
            wanted = self._reported(scores.shape[1])
            chosen[:, wanted] = scores[:, wanted] > self.score_threshold
        else:
            chosen = scores > self.score_threshold
        rows, classes = np.nonzero(chosen)
        values = scores[rows, classes]
        # At most max_rows of each class, or of each feature map.
        groups = classes if self.head.by_class else np.searchsorted(np.cumsum(self.head.level_sizes), rows, "right")
        for group in np.flatnonzero(np.bincount(groups) > self.head.max_rows):
            members = np.flatnonzero(groups == group)
            dropped = members[np.argsort(-values[members], kind="stable")[self.head.max_rows :]]
            values[dropped] = 0.0
        return self._report(values, classes, rows, heads["bbox_regression"][rows], source_size)

    def in_two_parts(self) -> TwoParts:
        """The first part selects candidates."""
        return TwoParts(self.reduce, self.decode_reduced)

    def reduce(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Raw head outputs on any device -> scores (K,), classes (K,), anchor indices (K,), box offsets (K, 4).

        K is the same for every frame.
        """
        heads = {name: output[0].float() for name, output in zip(self.head.names, outputs, strict=True)}
        best = self._best_by_class if self.head.by_class else self._best_by_level
        scores, classes, anchors = best(self._probabilities(heads))
        return scores, classes, anchors, heads["bbox_regression"][anchors]

    def decode_reduced(self, reduced: Sequence[Values], source_size: tuple[int, int]) -> Detections:
        """Result of reduce(), on the CPU, and the source image's (H, W). OutputError for NaN or infinity."""
        scores, classes, anchors, offsets = map(np.asarray, reduced)
        total = float(scores.sum(dtype=np.float64) + offsets.sum(dtype=np.float64))
        expect_finite(f"the scores or boxes of {len(scores)} candidates", total)
        return self._report(scores, classes, anchors, offsets, source_size)

    def _report(
        self, scores: Floats, classes: Integers, rows: Integers, offsets: Floats, source_size: tuple[int, int]
    ) -> Detections:
        chosen = np.flatnonzero(scores > self.score_threshold)
        scores, classes = scores[chosen], classes[chosen]
        geometry = self.preprocess.geometry(source_size)
        right, bottom = geometry.left + geometry.width, geometry.top + geometry.height  # the rest is padding
        boxes = self.head.boxes(offsets[chosen], rows[chosen])
        boxes = boxes.clip(0, np.array([right, bottom, right, bottom], np.float32))
        best = suppress(boxes, scores, classes, self.iou_threshold)
        if self.kept:  # before max_detections, for which the others must not count
            best = best[np.isin(classes[best], self.kept)]
        return self.finish(geometry.to_source(boxes[best]), scores[best], classes[best], source_size)

    def _probabilities(self, heads: dict[str, Values]) -> Values:
        """(N, classes), of arrays or tensors."""
        if self.head.by_class:
            return softmax(heads["cls_logits"])
        probability = sigmoid(heads["cls_logits"])
        if "bbox_ctrness" in heads:
            probability = (probability * sigmoid(heads["bbox_ctrness"])) ** 0.5
        return probability

    def _reported(self, classes: int) -> list[int]:
        """Numbers of the classes to report, if class 0 is background."""
        return [label for label in self.kept or range(classes) if label]

    def _best_by_level(self, probability: Tensor) -> tuple[Tensor, ...]:
        """(N, classes) -> the best of each feature map: scores, classes, anchor indices."""
        import torch

        found, begin, count = [], 0, probability.shape[1]
        for size in self.head.level_sizes:
            flat = probability[begin : begin + size].flatten()
            scores, indices = flat.topk(min(self.head.max_rows, len(flat)))
            found.append((scores, indices % count, torch.div(indices, count, rounding_mode="floor") + begin))
            begin += size
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    def _best_by_class(self, probability: Tensor) -> tuple[Tensor, ...]:
        """(N, classes), class 0 is background -> the best of each class: scores, classes, anchor indices."""
        import torch

        device = probability.device
        if device not in self._labels_on:  # in the first call, before a capture
            self._labels_on[device] = torch.tensor(self._reported(probability.shape[1]), device=device)
        labels = self._labels_on[device]
        scores, anchors = probability[:, labels].T.topk(min(self.head.max_rows, len(probability)))
        return scores.flatten(), labels[:, None].expand_as(scores).flatten(), anchors.flatten()


SPEC = DecoderSpec.of(
    AnchorDecoder,
    "raw head outputs of torchvision's SSD, SSDlite, RetinaNet, FCOS",
    takes_detector=True,
    recognize=None,
)
