"""torchvision's one-stage detectors, decoded in two parts: selection of candidates on the device, the rest on the CPU.

RetinaNet's raw outputs are tens of megabytes per frame, of which a few thousand rows can become boxes. Selecting these
on the device saves copying the others and decoding them on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.models.detection.fcos import FCOS

from multi_dnn_ros.decoders.base import expect_finite, suppress
from multi_dnn_ros.vision.results import Detections

Floats = npt.NDArray[np.float32]


class AnchorHead(Protocol):
    """The part of :class:`multi_dnn_ros.decoders.anchor.AnchorDecoder` that is used here."""

    detector: Any
    names: tuple[str, ...]
    anchors: Tensor
    level_sizes: list[int]
    by_level: bool
    kept: tuple[int, ...]
    iou_threshold: float

    @property
    def score_threshold(self) -> float: ...

    def image_end(self, source_size: tuple[int, int]) -> tuple[int, int]: ...

    def report(
        self, boxes: Floats, scores: Floats, classes: npt.NDArray[np.int64], source_size: tuple[int, int]
    ) -> Detections: ...


class AnchorCandidates:
    """The two parts of `decoder`, with its current thresholds.

    As in torchvision, at most `topk_candidates` rows per feature map (per class for an SSD) can become boxes.
    """

    def __init__(self, decoder: AnchorHead) -> None:
        self._decoder = decoder
        self._max_rows = int(decoder.detector.topk_candidates)
        self._labels: dict[torch.device, Tensor] = {}
        self._anchors = np.asarray(decoder.anchors.numpy(), np.float32)

    def condense(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Raw head outputs on any device -> scores (K,), classes (K,), anchor indices (K,), box offsets (K, 4).

        K is the same for every frame and no shape depends on values, so this can be captured as a CUDA graph.
        """
        decoder = self._decoder
        heads = {name: output[0].float() for name, output in zip(decoder.names, outputs, strict=True)}
        offsets = heads["bbox_regression"]
        if not decoder.by_level:
            scores, classes, anchors = self._best_by_class(heads["cls_logits"].softmax(-1))
        else:
            probability = heads["cls_logits"].sigmoid()
            if "bbox_ctrness" in heads:
                probability = (probability * heads["bbox_ctrness"].sigmoid()).sqrt()
            scores, classes, anchors = self._best_by_level(probability)
        return scores, classes, anchors, offsets[anchors]

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Detections:
        """Result of condense(), on the CPU, and the source image's (H, W). OutputError for NaN or infinity.

        Computed in NumPy; :func:`multi_dnn_ros.decoders.base.suppress` has the reason.
        """
        scores, classes, anchors, offsets = (output.numpy() for output in outputs)
        total = float(scores.sum(dtype=np.float64) + offsets.sum(dtype=np.float64))
        expect_finite(f"the scores or boxes of {len(scores)} candidates", total)
        decoder = self._decoder
        chosen = np.flatnonzero(scores > decoder.score_threshold)
        scores, classes = scores[chosen], classes[chosen]
        boxes = _boxes(decoder.detector, offsets[chosen], self._anchors[anchors[chosen]])
        bottom, right = decoder.image_end(source_size)
        boxes = boxes.clip(0, np.array([right, bottom, right, bottom], np.float32))
        best = suppress(boxes, scores, classes, decoder.iou_threshold)
        return decoder.report(boxes[best], scores[best], classes[best], source_size)

    def _best_by_level(self, probability: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, classes) -> the best of each feature map: scores, classes, anchor indices."""
        found, begin = [], 0
        for size in self._decoder.level_sizes:
            flat = probability[begin : begin + size].flatten()
            scores, indices = flat.topk(min(self._max_rows, len(flat)))
            count = probability.shape[1]
            found.append((scores, indices % count, torch.div(indices, count, rounding_mode="floor") + begin))
            begin += size
        scores, classes, anchors = (torch.cat(parts) for parts in zip(*found, strict=True))
        return scores, classes, anchors

    def _best_by_class(self, probability: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, classes), class 0 is background -> the best of each class: scores, classes, anchor indices."""
        labels = self._labels_on(probability.device, probability.shape[1])
        scores, anchors = probability[:, labels].T.topk(min(self._max_rows, len(probability)))
        return scores.flatten(), labels[:, None].expand_as(scores).flatten(), anchors.flatten()

    def _labels_on(self, device: torch.device, count: int) -> Tensor:
        """Classes that may be reported, as a tensor on `device`; created in the first call."""
        if device not in self._labels:
            kept = self._decoder.kept or range(1, count)
            self._labels[device] = torch.tensor([label for label in kept if label], device=device)
        return self._labels[device]


def _boxes(detector: Any, offsets: Floats, anchors: Floats) -> Floats:
    """(N, 4) offsets of the boxes from their anchors -> (N, 4) x1, y1, x2, y2, as torchvision's box coders do."""
    center, size = (anchors[:, :2] + anchors[:, 2:]) / 2, anchors[:, 2:] - anchors[:, :2]
    coder = detector.box_coder
    if isinstance(detector, FCOS):  # distances from the center to the sides
        if coder.normalize_by_size:
            offsets = offsets * np.concatenate([size, size], axis=1)
        return np.concatenate([center - offsets[:, :2], center + offsets[:, 2:]], axis=1)
    scaled = offsets / np.asarray(coder.weights, np.float32)
    center = scaled[:, :2] * size + center
    half = np.exp(np.minimum(scaled[:, 2:], np.float32(coder.bbox_xform_clip))) * size / 2
    return np.concatenate([center - half, center + half], axis=1)
