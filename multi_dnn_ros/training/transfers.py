"""Copies between host and GPU for which the host does not wait, so that it can launch further work meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device.

    A copy to a GPU from memory that is not pinned would begin after all work launched before, and the host would wait.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def stack_on(rows: Sequence[Tensor], device: torch.device) -> Tensor:
    """The stacked rows on the device. rows: on the host, with equal shapes and dtypes."""
    if device.type != "cuda":
        return torch.stack(list(rows)).to(device)
    pinned = torch.empty((len(rows), *rows[0].shape), dtype=rows[0].dtype, pin_memory=True)
    return torch.stack(list(rows), out=pinned).to(device, non_blocking=True)


class HostCopy:
    """A copy on the host of a small tensor that is being computed."""

    def __init__(self, tensor: Tensor) -> None:
        """Start the copy. tensor: (N,); not changed later."""
        self._values = tensor.to("cpu", non_blocking=True)  # pinned memory if the tensor is on a GPU
        self._copied: torch.cuda.Event | None = None
        if tensor.is_cuda:
            self._copied = torch.cuda.Event()
            self._copied.record()

    def values(self) -> list[float]:
        """Wait for the copy, but not for work that was launched after it."""
        if self._copied is not None:
            self._copied.synchronize()
        values: list[float] = self._values.tolist()
        return values
