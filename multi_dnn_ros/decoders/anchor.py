"""Raw head outputs of torchvision's one-stage detectors (SSD, SSDlite, RetinaNet, FCOS).

These are tens of megabytes per frame, of which a few thousand rows can become boxes. Selecting the rows on a GPU saves
copying the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multi_dnn_ros.decoders.base import Decoder, Floats, Integers, Values, sigmoid, softmax
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Detections, OutputError


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
    signature = "raw head outputs of torchvision's SSD, SSDlite, RetinaNet, FCOS"

    def __init__(self, head: AnchorHead, preprocess: Preprocess, labels: Sequence[str], **options: Any) -> None:
        super().__init__(preprocess, labels, **options)
        self.head = head

    def check(self, outputs: Sequence[Values]) -> None:
        found = tuple(tuple(output.shape) for output in outputs)
        if found != self.head.shapes:
            named = ", ".join(f"{name} {shape}" for name, shape in zip(self.head.names, self.head.shapes, strict=True))
            raise OutputError(f"outputs of shapes {', '.join(map(str, found))}; expected for this detector: {named}")

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Detections:
        heads = {name: output[0] for name, output in zip(self.head.names, outputs, strict=True)}
        scores = self._probabilities(heads)
        chosen = scores > self.score_threshold
        if self.head.by_class:
            chosen[:, 0] = False  # background
        rows, classes = np.nonzero(chosen)
        values = scores[rows, classes]
        # At most max_rows of each class, or of each feature map.
        groups = classes if self.head.by_class else np.searchsorted(np.cumsum(self.head.level_sizes), rows, "right")
        for group in np.flatnonzero(np.bincount(groups) > self.head.max_rows):
            members = np.flatnonzero(groups == group)
            dropped = members[np.argsort(-values[members], kind="stable")[self.head.max_rows :]]
            values[dropped] = 0.0
        return self.decode_reduced((values, classes, rows, heads["bbox_regression"][rows]), source_size)

    def reduce(self, outputs: Sequence[Values]) -> tuple[Values, ...]:
        """The candidates: scores (K,), classes (K,), anchor indices (K,), box offsets (K, 4); K is always the same."""
        heads = {name: output[0] for name, output in zip(self.head.names, outputs, strict=True)}
        best = self._best_by_class if self.head.by_class else self._best_by_level
        scores, classes, anchors = best(self._probabilities(heads))
        return scores, classes, anchors, heads["bbox_regression"][anchors]

    def decode_reduced(self, reduced: Sequence[Any], source_size: tuple[int, int]) -> Detections:
        scores, classes, rows, offsets = reduced
        chosen = np.flatnonzero(scores > self.score_threshold)
        geometry = self.preprocess.geometry(source_size)
        right, bottom = geometry.left + geometry.width, geometry.top + geometry.height  # the rest is padding
        boxes = self.head.boxes(offsets[chosen], rows[chosen]).clip(0, np.array([right, bottom] * 2, np.float32))
        return self.select(boxes, scores[chosen], classes[chosen], source_size, limit=len(chosen))

    def _probabilities(self, heads: dict[str, Values]) -> Values:
        """(N, classes), of arrays or tensors."""
        if self.head.by_class:
            return softmax(heads["cls_logits"])
        probability = sigmoid(heads["cls_logits"])
        if "bbox_ctrness" in heads:
            probability = (probability * sigmoid(heads["bbox_ctrness"])) ** 0.5
        return probability

    def _best_by_level(self, probability: Values) -> tuple[Values, ...]:
        """(N, classes) -> the best of each feature map: scores, classes, anchor indices."""
        import torch

        found, begin, count = [], 0, probability.shape[1]
        for size in self.head.level_sizes:
            flat = probability[begin : begin + size].flatten()
            scores, indices = flat.topk(min(self.head.max_rows, len(flat)))
            found.append((scores, indices % count, torch.div(indices, count, rounding_mode="floor") + begin))
            begin += size
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    def _best_by_class(self, probability: Values) -> tuple[Values, ...]:
        """(N, classes), class 0 is background -> the best of each class: scores, classes, anchor indices."""
        import torch

        scores, anchors = probability[:, 1:].T.topk(min(self.head.max_rows, len(probability)))
        classes = torch.arange(1, probability.shape[1], device=probability.device)
        return scores.flatten(), classes[:, None].expand_as(scores).flatten(), anchors.flatten()


SPEC = DecoderSpec.of(AnchorDecoder, takes_detector=True, recognize=None)
