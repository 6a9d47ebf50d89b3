"""The share of a GPU that a process computes on: all of it, or so many SMs by a CUDA green context."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import torch

from multi_dnn_ros.backends import green_contexts
from multi_dnn_ros.cli.errors import UsageError

#: Streams of a share, handed out in turn: they are never given back, and a GPU has few hardware queues.
_STREAMS = 16


def check_partition(device: torch.device, sms: int | None) -> None:
    """UsageError where the device cannot be partitioned so."""
    if sms is None:
        return
    if device.type != "cuda":
        raise UsageError(f"--sms {sms}: only an NVIDIA GPU can be partitioned; the device is {device}")
    if not green_contexts.supported():
        raise UsageError(
            f"--sms {sms}: this PyTorch ({torch.__version__}) has no CUDA green contexts; it takes one from 2.11 on, "
            "built for CUDA 12.8 or newer"
        )
    most = torch.cuda.get_device_properties(device).multi_processor_count
    if sms > most:
        raise UsageError(f"--sms is {sms}; allowed: 1 to {most}, what {device} has")


class Partition:
    """Streams on the device's share. sms: None for the whole device. Limits SMs, not memory bandwidth.

    To be made in the process that computes; check_partition() has said that it can be.
    """

    def __init__(self, device: torch.device, sms: int | None = None) -> None:
        self.device = device
        self.sms = sms
        self._context: Any = None
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.zeros(1, device=device)  # a green context needs the primary one
            if sms is not None:
                from torch.cuda.green_contexts import GreenContext

                self._context = GreenContext.create(sms, device.index or 0)
                self._streams = itertools.cycle([self._context.Stream() for _ in range(_STREAMS)])

    def make_stream(self, priority: int = 0) -> torch.cuda.Stream:
        """A stream on the share, another one each time up to 16; CUDA only. May be called in any thread.

        priority: of the stream; streams of a share have none.
        """
        if self._context is not None:
            stream: torch.cuda.Stream = next(self._streams)
            return stream
        return torch.cuda.Stream(self.device, priority=priority)

    def own_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Compute on a stream of the share inside the block; on a CPU nothing changes."""
        if self.device.type != "cuda":
            return contextlib.nullcontext()
        return torch.cuda.stream(self.make_stream())

    def main_stream(self) -> contextlib.AbstractContextManager[Any]:
        """What a program of one stream computes on: PyTorch's default stream, or one of the share."""
        if self._context is None:
            return contextlib.nullcontext()
        return torch.cuda.stream(self.make_stream())

    def synchronize(self) -> None:
        """Wait for the calling thread's current stream."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
