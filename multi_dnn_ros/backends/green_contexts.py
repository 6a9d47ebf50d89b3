"""Streams on a share of a GPU: so many of its SMs, by a CUDA green context.

A share limits which SMs its kernels may use; it does not reserve them against others, and memory bandwidth stays common
to all. CUDA chooses the SMs, so two shares of different size overlap.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch

T = TypeVar("T")

#: (least, step) of a share, by the major number of the GPU's compute capability; from 9 on as _FROM_9. CUDA driver API,
#: "Green Contexts".
_GRANULARITY = {6: (1, 1), 7: (2, 2), 8: (4, 2)}
_FROM_9 = (8, 8)
#: Streams of a share, handed out in turn: they are never given back, and a GPU has few hardware queues.
_STREAMS = 16

#: (device index, SMs) -> the green context and its streams. A process has one share of each size and keeps it: streams
#: and captured graphs do not outlive their context.
_shares: dict[tuple[int, int], tuple[Any, Iterator[Any]]] = {}
#: CUDA's handle of each stream of a share -> its SMs.
_sms_of: dict[int, int] = {}
_lock = threading.Lock()


def supported() -> bool:
    """From PyTorch 2.11 on, built for CUDA 12.8 or newer."""
    try:
        from torch.cuda import green_contexts
    except ImportError:
        return False
    return bool(getattr(green_contexts, "SUPPORTED", False))


def sms_problem(device: torch.device, sms: int) -> str:
    """Why `device` cannot give a share of `sms` SMs, and what is allowed, for a message; "" when it can."""
    if device.type != "cuda":
        return f"only an NVIDIA GPU can be partitioned; the device is {device}"
    if not supported():
        return (
            f"this PyTorch ({torch.__version__}) has no CUDA green contexts; it takes one from 2.11 on, built for CUDA "
            "12.8 or newer"
        )
    properties = torch.cuda.get_device_properties(device)
    least, step = _GRANULARITY.get(properties.major, _FROM_9)
    count = properties.multi_processor_count
    if sms < least or sms > count or sms % step:
        return f"allowed: {least} to {count // step * step} in steps of {step} ({device} has {count} SMs)"
    return ""


def make_stream(device: torch.device, sms: int = 0, priority: int = 0) -> torch.cuda.Stream:
    """A stream of a GPU on its share of `sms` SMs; 0: on all of it. May be called in any thread.

    priority: of the stream; those on a share have none. The share is made with its first stream; from then on its
    streams are handed out again and again. RuntimeError where sms_problem() says something, and when CUDA refuses.
    """
    if not sms:
        return torch.cuda.Stream(device, priority=priority)
    with _lock:
        key = (device.index or 0, sms)
        if key not in _shares:
            _shares[key] = _make_share(device, sms)
        stream: torch.cuda.Stream = next(_shares[key][1])
        return stream


def computing_on(device: torch.device, sms: int = 0) -> AbstractContextManager[Any]:
    """Inside the block the calling thread computes on a stream of the share; with 0 on what it did before.

    On a GPU it is the current device there; on a CPU nothing changes.
    """
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.stream(make_stream(device, sms)) if sms else torch.cuda.device(device)


def current_sms(device: torch.device) -> int:
    """Multiprocessors that the calling thread's current stream on a GPU computes on: its share's, or all."""
    sms = _sms_of.get(torch.cuda.current_stream(device).cuda_stream)
    return torch.cuda.get_device_properties(device).multi_processor_count if sms is None else sms


def with_own_cudnn_plans(sms: int, work: Callable[[], T]) -> T:
    """What `work` returns or raises; for a share of `sms` SMs it is done by a thread of its own, for 0 by this one.

    cuDNN plans each convolution once for a thread, whatever SMs that computes on, and a plan for a whole GPU can fail
    on a few SMs (on 8 of an H200's, with EXECUTION_FAILED).
    """
    if not sms:
        return work()
    with ThreadPoolExecutor(1, thread_name_prefix=f"{sms} SMs") as one:
        return one.submit(work).result()


def _make_share(device: torch.device, sms: int) -> tuple[Any, Iterator[Any]]:
    from torch.cuda.green_contexts import GreenContext

    torch.zeros(1, device=device)  # a green context needs the primary one
    context: Any = GreenContext.create(sms, device.index or 0)
    streams = [context.Stream() for _ in range(_STREAMS)]
    _sms_of.update({stream.cuda_stream: sms for stream in streams})
    return context, itertools.cycle(streams)
