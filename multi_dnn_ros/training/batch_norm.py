"""Batch normalization over a batch that is divided among several processes."""

from __future__ import annotations

import logging
from collections import Counter

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm

log = logging.getLogger(__name__)

#: The layers that are replaced. Subclasses are not, because their forward pass may do more than normalize.
_REPLACED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class GlobalBatchNorm(_BatchNorm):
    """Batch normalization (Ioffe and Szegedy 2015) with mean and variance of the whole batch, however it is divided.

    Like torch.nn.SyncBatchNorm, which has no CPU version. Without a process group it equals the layer that it replaces.
    The parts of the batch may differ in size; the gradients are those of the whole batch if the losses of the processes
    add up to the loss of the batch.
    """

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002  the name in PyTorch
        if input.dim() < 2:
            raise ValueError(f"expected (images, channels, ...), got {input.dim()} dimensions")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            plain: Tensor = super().forward(input)
            return plain
        axes = [axis for axis in range(input.dim()) if axis != 1]
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        count = values.new_full((1,), values.numel() / values.shape[1])
        sums = all_reduce(torch.cat([values.sum(axes), count]))
        total = sums[-1].detach()
        mean = sums[:-1] / total
        shape = [1, -1] + [1] * (input.dim() - 2)
        centred = values - mean.view(shape)
        # A second exchange, because mean(x^2) - mean(x)^2 loses digits.
        variance = all_reduce((centred * centred).sum(axes)) / total
        self._update(mean.detach(), variance.detach() * total / (total - 1))
        result = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        normalized: Tensor = result.to(input.dtype)
        return normalized

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        factor = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, factor)
        self.running_var.lerp_(variance, factor)


def with_global_batch_norm(network: nn.Module) -> list[tuple[nn.Module, type[nn.Module]]]:
    """Replace all batch normalization layers of `network` in place; their weights and statistics stay.

    Returns the layers and their former classes. Subclasses of PyTorch's layers are not replaced; a warning names them.
    """
    replaced: list[tuple[nn.Module, type[nn.Module]]] = []
    others: Counter[str] = Counter()
    for module in network.modules():
        if type(module) in _REPLACED:
            replaced.append((module, type(module)))
            module.__class__ = GlobalBatchNorm
        elif isinstance(module, _BatchNorm) and not isinstance(module, GlobalBatchNorm | nn.SyncBatchNorm):
            others[type(module).__name__] += 1
    for name, count in others.items():
        log.warning("%d layers of class %s normalize over the images of one process: only PyTorch's are replaced",
                    count, name)  # fmt: skip
    return replaced
