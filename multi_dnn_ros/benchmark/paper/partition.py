"""The share of a GPU that a process computes on: all of it, or so many SMs by a CUDA green context."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from multi_dnn_ros.backends import green_contexts
from multi_dnn_ros.common.errors import UsageError


def check_partition(device: torch.device, sms: int | None) -> None:
    """UsageError where the device cannot be partitioned so."""
    if sms is None:
        return
    if problem := green_contexts.unmet(device, sms):
        raise UsageError(f"--sms is {sms}; {problem}")


class Partition:
    """Streams on the device's share. sms: None for the whole device. Limits SMs, not memory bandwidth.

    To be made in the process that computes; check_partition() has said that it can be.
    """

    def __init__(self, device: torch.device, sms: int | None = None) -> None:
        self.device = device
        self.sms = sms
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.zeros(1, device=device)  # its memory is part of every condition's

    def own_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Compute on a stream of the share inside the block; on a CPU nothing changes."""
        if self.device.type != "cuda":
            return contextlib.nullcontext()
        return torch.cuda.stream(green_contexts.make_stream(self.device, self.sms or 0))

    def main_stream(self) -> contextlib.AbstractContextManager[Any]:
        """What a program of one stream computes on: PyTorch's default stream, or one of the share."""
        return green_contexts.computing_on(self.device, self.sms or 0)

    def synchronize(self) -> None:
        """Wait for the calling thread's current stream."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
