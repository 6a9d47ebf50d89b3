"""torchvision's one-stage detectors, decoded in two parts: what reads all raw outputs, and what is left for the CPU.

RetinaNet's raw outputs are tens of megabytes a frame; of these a few thousand rows can become boxes. Choosing them
where the outputs lie saves a GPU the copy and a CPU the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torchvision.models.detection.fcos import FCOS
from torchvision.ops import batched_nms, clip_boxes_to_image

from multi_dnn_ros.vision.decoders.base import expect_finite, total_of
from multi_dnn_ros.vision.results import Detections


class AnchorHead(Protocol):
    """What is read of a :class:`multi_dnn_ros.vision.decoders.anchor.AnchorDecoder`, which explains the attributes."""

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

    def report(self, boxes: Tensor, scores: Tensor, classes: Tensor, source_size: tuple[int, int]) -> Detections: ...


class AnchorCandidates:
    """Gives what `decoder` gives, for the thresholds that it has at the moment.

    most: rows of a level (of a class for an SSD) that can become boxes, as torchvision chooses them.
    """

    def __init__(self, decoder: AnchorHead) -> None:
        self._decoder = decoder
        self._most = int(decoder.detector.topk_candidates)
        self._labels: dict[torch.device, Tensor] = {}

    def condense(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Raw head outputs on any device -> scores (K,), classes (K,), anchors' numbers (K,), box offsets (K, 4).

        K is the same for every frame, and nothing here depends on values: it can be captured in a graph.
        """
        decoder = self._decoder
        heads = {name: output[0].float() for name, output in zip(decoder.names, outputs, strict=True)}
        offsets = heads["bbox_regression"]
        if not decoder.by_level:
            scores, classes, anchors = self._of_classes(heads["cls_logits"].softmax(-1))
        else:
            probability = heads["cls_logits"].sigmoid()
            if "bbox_ctrness" in heads:
                probability = (probability * heads["bbox_ctrness"].sigmoid()).sqrt()
            scores, classes, anchors = self._of_levels(probability)
        return scores, classes, anchors, offsets[anchors]

    def decode(self, outputs: Sequence[Tensor], source_size: tuple[int, int]) -> Detections:
        """What condense() gave, on the CPU, and the source image's (H, W). OutputError for NaN or infinity."""
        scores, classes, anchors, offsets = outputs
        expect_finite(f"the list of {len(scores)} candidates", total_of(scores) + total_of(offsets))
        decoder = self._decoder
        chosen = scores > decoder.score_threshold
        scores, classes = scores[chosen], classes[chosen]
        coder: Any = decoder.detector.box_coder
        code = coder.decode if isinstance(decoder.detector, FCOS) else coder.decode_single
        boxes = code(offsets[chosen], decoder.anchors[anchors[chosen]])
        boxes = clip_boxes_to_image(boxes, decoder.image_end(source_size))
        first = batched_nms(boxes, scores, classes, decoder.iou_threshold)
        return decoder.report(boxes[first], scores[first], classes[first], source_size)

    def _of_levels(self, probability: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, classes) -> the best of each feature map: scores, classes, anchors' numbers."""
        found, begin = [], 0
        for size in self._decoder.level_sizes:
            flat = probability[begin : begin + size].flatten()
            scores, places = flat.topk(min(self._most, len(flat)))
            count = probability.shape[1]
            found.append((scores, places % count, torch.div(places, count, rounding_mode="floor") + begin))
            begin += size
        scores, classes, anchors = (torch.cat(parts) for parts in zip(*found, strict=True))
        return scores, classes, anchors

    def _of_classes(self, probability: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, classes), the first of them background -> the best of each class."""
        labels = self._labels_on(probability.device, probability.shape[1])
        scores, anchors = probability[:, labels].T.topk(min(self._most, len(probability)))
        return scores.flatten(), labels[:, None].expand_as(scores).flatten(), anchors.flatten()

    def _labels_on(self, device: torch.device, count: int) -> Tensor:
        """Classes that may be reported; copied to the device with the first frame."""
        if device not in self._labels:
            kept = self._decoder.kept or range(1, count)
            self._labels[device] = torch.tensor([label for label in kept if label], device=device)
        return self._labels[device]
