"""The share of a GPU that a process computes on: all of it, or a number of SMs by a CUDA green context."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from multi_dnn_ros.backends import green_contexts
from multi_dnn_ros.common.errors import UsageError


def check_partition(device: torch.device, sms: int | None) -> None:
    """Raise UsageError if the device cannot be partitioned into `sms` SMs."""
    if sms is None:
        return
    if problem := green_contexts.sms_problem(device, sms):
        raise UsageError(f"--sms is {sms}; {problem}")


class Partition:
    """Streams on the device's share. sms: None for the whole device. Limits SMs, not memory bandwidth.

    To be created in the process that computes, after check_partition().
    """

    def __init__(self, device: torch.device, sms: int | None = None) -> None:
        self.device = device
        self.sms = sms
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.zeros(1, device=device)  # its memory counts for every condition

    def own_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Context that computes on a new stream of the share; no effect on a CPU."""
        if self.device.type != "cuda":
            return contextlib.nullcontext()
        return torch.cuda.stream(green_contexts.make_stream(self.device, self.sms or 0))

    def main_stream(self) -> contextlib.AbstractContextManager[Any]:
        """The stream of a single-stream program: PyTorch's default stream, or one of the share."""
        return green_contexts.computing_on(self.device, self.sms or 0)

    def synchronize(self) -> None:
        """Wait for the calling thread's current stream."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
