"""torchvision's one-stage detectors (SSD, SSDlite, RetinaNet, FCOS) in two: layers, and what their decoder needs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.models.detection.fcos import FCOS
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD

from multi_dnn_ros.decoders.anchor import AnchorHead


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


def anchor_head(detector: Any, size: tuple[int, int]) -> AnchorHead:
    """The outputs and anchors of a detector in eval mode for inputs of (height, width)."""
    core = DetectorCore(detector)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        image = torch.empty(1, 3, *size)
        features = core.features(image)
        outputs = core.head(features)
    maps = [torch.empty(feature.shape) for feature in features]
    (anchors,) = detector.anchor_generator(ImageList(torch.empty(1, 3, *size), [size]), maps)
    per_cell = len(anchors) // sum(feature.shape[2] * feature.shape[3] for feature in maps)
    coder, to_sides = detector.box_coder, isinstance(detector, FCOS)
    return AnchorHead(
        names=tuple(outputs),
        shapes=tuple(tuple(output.shape) for output in outputs.values()),
        anchors=anchors.numpy(),
        level_sizes=tuple(feature.shape[2] * feature.shape[3] * per_cell for feature in maps),
        max_rows=int(detector.topk_candidates),
        by_class=isinstance(detector, SSD),
        weights=None if to_sides else tuple(coder.weights),
        max_log=0.0 if to_sides else float(coder.bbox_xform_clip),
        scale_by_size=to_sides and bool(coder.normalize_by_size),
    )
