"""The loss for each decoder; the decoder's DecoderSpec refers to it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from multi_dnn_ros.models.dnn import Dnn, Source
from multi_dnn_ros.models.networks import cells
from multi_dnn_ros.training.loop import Loss
from multi_dnn_ros.training.losses import DetectionLoss, LaneLoss, TorchvisionLoss

#: Combinations of grid strides in YOLO-style heads.
_STRIDES = ((8, 16, 32), (16, 32), (8, 16), (32,), (16,), (8,), (4, 8, 16, 32), (8, 16, 32, 64))


def lane_loss(dnn: Dnn, source: Source) -> Loss:
    """The loss for decoder `lane`, with the classes that it treats as lanes."""
    decoder: Any = dnn.decoder
    return LaneLoss(lane_classes=decoder.chosen_classes)


def torchvision_loss(dnn: Dnn, source: Source) -> Loss:
    """The loss for decoder `torchvision`: the detector's own."""
    decoder: Any = dnn.decoder
    detector: Any = copy.deepcopy(source.detector)
    detector.backbone = nn.Identity()
    return TorchvisionLoss(detector, torch.from_numpy(decoder.head.anchors), decoder.head.level_sizes)


def yolo_loss(dnn: Dnn, source: Source) -> Loss | None:
    """The loss for decoder `yolo`; None if the number of anchor points matches none of the known grids."""
    size = (dnn.preprocess.width, dnn.preprocess.height)
    with torch.no_grad():
        (output,) = pytree.tree_leaves(dnn.module(*dnn.example_inputs()))
    for strides in _STRIDES:
        if len(cells(*size, strides)[0]) == output.shape[2]:
            return DetectionLoss(size, strides)
    return None
