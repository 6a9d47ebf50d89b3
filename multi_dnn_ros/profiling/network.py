"""Loads a network by its model name, to be timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from multi_dnn_ros.planning.layer_chain import Traced, trace_on_cpu

#: Called with the number of steps done and their total.
ReportProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Network:
    """A network to profile. shape: of its only input, with batch 1."""

    name: str
    module: nn.Module
    shape: tuple[int, ...]

    def traced(self, batch: int) -> Traced:
        """The network with `batch` random images. Raises TraceError."""
        images = torch.rand(batch, *self.shape[1:], generator=torch.Generator().manual_seed(0))
        return trace_on_cpu(self.module, (images,))


def load(model: str, *, weights: str = "", num_classes: int = 0, size: tuple[int, int] | None = None) -> Network:
    """The network that the node would run for `model`, or a torchvision classifier.

    weights: "" means random for sources that take weights (times do not depend on them), otherwise the model's own.
    size: (width, height), for models that do not define it. Raises ModelError, which names the argument.
    """
    from multi_dnn_ros.models.balance import balance, random_image
    from multi_dnn_ros.models.registry import source_of
    from multi_dnn_ros.models.sources import load_network

    origin = source_of(model)
    weights = weights or ("random" if origin is not None and origin.takes_weights else "default")
    source = load_network(model, weights=weights, num_classes=num_classes, size=size)
    width, height = source.input_size(model, size, "argument size")
    if weights == "random":
        balance(source.network, random_image(width, height))
    for part in source.network.modules():
        part.training = False  # eval() raises for exported programs
    return Network(model, source.network, (1, 3, height, width))
