"""torchvision's one-stage detectors (SSD, SSDlite, RetinaNet, FCOS), with torchvision's anchors and box coders.

Their raw outputs are tens of megabytes per frame, of which a few thousand rows can become boxes. Selecting these on the
device saves copying the others and decoding them on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.models.detection.fcos import FCOS
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD

from multi_dnn_ros.decoders.arrays import Floats, Values
from multi_dnn_ros.decoders.base import Decoder, TwoParts, expect_finite, suppress
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Detections, OutputError


class DetectorCore(nn.Module):
    """Backbone and head of a torchvision one-stage detector: normalized image (1, 3, h, w) -> raw outputs by name."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone: nn.Module = detector.backbone
        self.head: nn.Module = detector.head

    def features(self, image: Tensor) -> list[Tensor]:
        """Feature maps for the head, highest resolution first."""
        features = self.backbone(image)
        return [features] if isinstance(features, Tensor) else list(features.values())

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = self.head(self.features(image))
        return outputs


class AnchorDecoder(Decoder):
    """Decodes the outputs of a DetectorCore with the detector's own anchors and box coder.

    detector: an SSD, RetinaNet or FCOS of torchvision in eval mode. Its layers are moved to `core`; the rest decodes
    and has no weights. The input size is that of `preprocess`, so the anchors are computed once. As in torchvision, at
    most `topk_candidates` rows per feature map (per class for an SSD) can become boxes. anchors: (N, 4) float32 tensor
    x1, y1, x2, y2 in input pixels. level_sizes: number of anchors per feature map.
    """

    name = "torchvision"

    def __init__(self, detector: Any, preprocess: Preprocess, labels: Sequence[str], **options: Any) -> None:
        super().__init__(preprocess, labels, **options)
        core = self.core = DetectorCore(detector)
        size = (preprocess.height, preprocess.width)
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            image = torch.empty(1, 3, *size)
            features = core.features(image)
            outputs = core.head(features)
        self._names = tuple(outputs)
        self._shapes = tuple(tuple(output.shape) for output in outputs.values())
        maps = [torch.empty(feature.shape) for feature in features]
        (self.anchors,) = detector.anchor_generator(ImageList(torch.empty(1, 3, *size), [size]), maps)
        per_cell = len(self.anchors) // sum(feature.shape[2] * feature.shape[3] for feature in maps)
        self.level_sizes = [feature.shape[2] * feature.shape[3] * per_cell for feature in maps]
        self._by_level = not isinstance(detector, SSD)
        self._max_rows = int(detector.topk_candidates)
        self._detector = detector
        self._labels_on: dict[torch.device, Tensor] = {}
        del detector.backbone, detector.head

    def check(self, outputs: Sequence[Values]) -> None:
        found = tuple(tuple(output.shape) for output in outputs)
        if found != self._shapes:
            named = ", ".join(f"{name} {shape}" for name, shape in zip(self._names, self._shapes, strict=True))
            raise OutputError(f"outputs of shapes {', '.join(map(str, found))}; expected for this detector: {named}")

    def decode(self, outputs: Sequence[Floats], source_size: tuple[int, int]) -> Detections:
        return self.decode_reduced(self.reduce([torch.from_numpy(output) for output in outputs]), source_size)

    def in_two_parts(self) -> TwoParts:
        """The first part selects candidates."""
        return TwoParts(self.reduce, self.decode_reduced)

    def reduce(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Raw head outputs on any device -> scores (K,), classes (K,), anchor indices (K,), box offsets (K, 4).

        K is the same for every frame.
        """
        heads = {name: output[0].float() for name, output in zip(self._names, outputs, strict=True)}
        offsets = heads["bbox_regression"]
        if not self._by_level:
            scores, classes, anchors = self._best_by_class(heads["cls_logits"].softmax(-1))
        else:
            probability = heads["cls_logits"].sigmoid()
            if "bbox_ctrness" in heads:
                probability = (probability * heads["bbox_ctrness"].sigmoid()).sqrt()
            scores, classes, anchors = self._best_by_level(probability)
        return scores, classes, anchors, offsets[anchors]

    def decode_reduced(self, reduced: Sequence[Values], source_size: tuple[int, int]) -> Detections:
        """Result of reduce(), on the CPU, and the source image's (H, W). OutputError for NaN or infinity."""
        scores, classes, anchors, offsets = map(np.asarray, reduced)
        total = float(scores.sum(dtype=np.float64) + offsets.sum(dtype=np.float64))
        expect_finite(f"the scores or boxes of {len(scores)} candidates", total)
        chosen = np.flatnonzero(scores > self.score_threshold)
        scores, classes = scores[chosen], classes[chosen]
        geometry = self.preprocess.geometry(source_size)
        right, bottom = geometry.left + geometry.width, geometry.top + geometry.height  # the rest is padding
        boxes = _boxes(self._detector, offsets[chosen], self.anchors.numpy()[anchors[chosen]])
        boxes = boxes.clip(0, np.array([right, bottom, right, bottom], np.float32))
        best = suppress(boxes, scores, classes, self.iou_threshold)
        if self.kept:  # before max_detections, for which the others must not count
            best = best[np.isin(classes[best], self.kept)]
        return self.finish(geometry.to_source(boxes[best]), scores[best], classes[best], source_size)

    def _best_by_level(self, probability: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, classes) -> the best of each feature map: scores, classes, anchor indices."""
        found, begin, count = [], 0, probability.shape[1]
        for size in self.level_sizes:
            flat = probability[begin : begin + size].flatten()
            scores, indices = flat.topk(min(self._max_rows, len(flat)))
            found.append((scores, indices % count, torch.div(indices, count, rounding_mode="floor") + begin))
            begin += size
        scores, classes, anchors = (torch.cat(parts) for parts in zip(*found, strict=True))
        return scores, classes, anchors

    def _best_by_class(self, probability: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, classes), class 0 is background -> the best of each class: scores, classes, anchor indices."""
        device = probability.device
        if device not in self._labels_on:  # in the first call, before a capture
            kept = self.kept or range(1, probability.shape[1])
            self._labels_on[device] = torch.tensor([label for label in kept if label], device=device)
        labels = self._labels_on[device]
        scores, anchors = probability[:, labels].T.topk(min(self._max_rows, len(probability)))
        return scores.flatten(), labels[:, None].expand_as(scores).flatten(), anchors.flatten()


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


SPEC = DecoderSpec.of(
    AnchorDecoder,
    "raw head outputs of torchvision's SSD, SSDlite, RetinaNet, FCOS",
    takes_detector=True,
    loss="multi_dnn_ros.training.losses:torchvision_loss",
    recognize=None,
)
