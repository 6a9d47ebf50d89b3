"""The moving average of the weights that training scores and keeps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from multi_dnn_ros.training.precision import autocast

#: Number of batches from which the batch normalization statistics of averaged weights are computed.
_STATISTICS_BATCHES = 32


class Averaging:
    """Exponential moving average of the weights; buffers are copied, see fit_statistics."""

    def __init__(self, average: nn.Module, network: nn.Module) -> None:
        self._weights = tuple([p.detach() for p in module.parameters()] for module in (average, network))
        kinds = {buffer.dtype for buffer in network.buffers()}  # tensors of one dtype are copied in one launch
        self._buffers = [
            tuple([b for b in module.buffers() if b.dtype is kind] for module in (average, network)) for kind in kinds
        ]

    @torch.no_grad()
    def step(self, decay: float) -> None:
        kept, new = self._weights
        torch._foreach_lerp_(kept, new, 1.0 - decay)
        for kept, new in self._buffers:
            torch._foreach_copy_(kept, new)


def fit_statistics(average: nn.Module, images: Iterator[Tensor], precision: str) -> None:
    """Compute the batch normalization statistics of the averaged weights from images (Izmailov et al. 2018).

    The statistics of the trained network do not fit, because weights that change fast differ from their average.
    """
    device = next(average.parameters()).device
    with autocast(device, precision):
        update_bn(itertools.islice(images, _STATISTICS_BATCHES), average)
