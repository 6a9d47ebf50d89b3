"""The model source: `toy_zoo:brightness`, the mean of the channels over blocks of 4 x 4 pixels."""

from __future__ import annotations

import torch
from torch import nn

from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.errors import ModelError
from multi_dnn_ros.models.registry import ModelRequest, ModelSource


def load(request: ModelRequest) -> Source:
    if request.name != "brightness":
        raise ModelError(f"{request.where}model is 'toy_zoo:{request.name}'; allowed: toy_zoo:brightness")
    network = nn.Conv2d(3, 1, 4, stride=4, bias=False)
    nn.init.constant_(network.weight, 1 / 48)
    return Source(network.requires_grad_(False).eval(), (64, 48), "", fixed_size=True, classes=1)


def example() -> torch.Tensor:
    return torch.zeros(1, 3, 48, 64)


SPEC = ModelSource("toy_zoo", load, form="toy_zoo:brightness")
