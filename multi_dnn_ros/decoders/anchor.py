"""torchvision's one-stage detectors (SSD, SSDlite, RetinaNet, FCOS), decoded by torchvision's code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD

from multi_dnn_ros.decoders.base import Decoder, TwoParts
from multi_dnn_ros.decoders.candidates import AnchorCandidates
from multi_dnn_ros.decoders.registry import DecoderSpec
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.results import Detections, OutputError


class DetectorCore(nn.Module):
    """Backbone and head of a torchvision one-stage detector: normalized image (1, 3, h, w) -> raw outputs by name."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone: nn.Module = detector.backbone
        self.head: nn.Module = detector.head

    def features(self, image: torch.Tensor) -> list[torch.Tensor]:
        """Feature maps for the head, highest resolution first."""
        features = self.backbone(image)
        return [features] if isinstance(features, torch.Tensor) else list(features.values())

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs: dict[str, torch.Tensor] = self.head(self.features(image))
        return outputs


class AnchorDecoder(Decoder):
    """Decodes the outputs of a DetectorCore with the detector's own anchors, box coder and NMS.

    detector: an SSD, RetinaNet or FCOS of torchvision in eval mode. Its layers are moved to `core`; the rest decodes
    and has no weights. The input size is that of `preprocess`, so the anchors are computed once. anchors: (N, 4)
    float32 x1, y1, x2, y2 in input pixels. level_sizes: number of anchors per feature map. names: of the raw outputs,
    in order. by_level: whether candidates are selected per feature map or per class.
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
        self.names = tuple(outputs)
        self._shapes = tuple(tuple(output.shape) for output in outputs.values())
        maps = [torch.empty(feature.shape) for feature in features]
        (self.anchors,) = detector.anchor_generator(ImageList(torch.empty(1, 3, *size), [size]), maps)
        per_cell = len(self.anchors) // sum(feature.shape[2] * feature.shape[3] for feature in maps)
        self.level_sizes = [feature.shape[2] * feature.shape[3] * per_cell for feature in maps]
        self.by_level = not isinstance(detector, SSD)
        self.detector = detector
        del detector.backbone, detector.head

    def in_two_parts(self) -> TwoParts:
        return AnchorCandidates(self)

    def check(self, outputs: Sequence[torch.Tensor]) -> None:
        self.expect_outputs(outputs, len(self.names))
        for name, expected, output in zip(self.names, self._shapes, outputs, strict=True):
            if tuple(output.shape) != expected:
                raise OutputError(
                    f"output {name} has shape {tuple(output.shape)}; expected for this detector: {expected}"
                )

    def decode(self, outputs: Sequence[torch.Tensor], source_size: tuple[int, int]) -> Detections:
        detector: Any = self.detector
        detector.score_thresh = self.score_threshold
        detector.nms_thresh = self.iou_threshold
        detector.detections_per_img = len(self.anchors) * len(self.labels)  # keep all: report() selects
        heads: dict[str, Any] = dict(zip(self.names, outputs, strict=True))
        anchors: list[Any] = [self.anchors]
        if self.by_level:
            heads = {name: list(head.split(self.level_sizes, dim=1)) for name, head in heads.items()}
            anchors = [list(self.anchors.split(self.level_sizes))]
        (found,) = detector.postprocess_detections(heads, anchors, [self.image_end(source_size)])
        boxes, scores, labels = (found[name].numpy() for name in ("boxes", "scores", "labels"))
        return self.report(boxes, scores, labels, source_size)

    def image_end(self, source_size: tuple[int, int]) -> tuple[int, int]:
        """(lower, right) end of the image in the input; boxes are clipped to it, because the rest is padding."""
        geometry = self.preprocess.geometry(source_size)
        return geometry.top + geometry.height, geometry.left + geometry.width

    def report(
        self,
        boxes: npt.NDArray[np.float32],
        scores: npt.NDArray[np.float32],
        classes: npt.NDArray[np.int64],
        source_size: tuple[int, int],
    ) -> Detections:
        """Boxes in input pixels after NMS, best first -> the best ones of the kept classes, in source pixels."""
        # Select the classes first: the others must not count for max_detections.
        chosen = np.isin(classes, self.kept) if self.kept else slice(self.max_detections)
        found = self.preprocess.geometry(source_size).to_source(boxes[chosen])
        return self.finish(found, scores[chosen], classes[chosen], source_size)


SPEC = DecoderSpec(
    "torchvision",
    AnchorDecoder,
    signature="raw head outputs of torchvision's SSD, SSDlite, RetinaNet, FCOS",
    takes_detector=True,
    loss="multi_dnn_ros.training.decoder_losses:torchvision_loss",
)
