"""Streams on a share of a GPU, which is a number of its SMs in a CUDA green context.

A share limits the SMs that its kernels use. It does not reserve them, and memory bandwidth stays shared. PyTorch's
green contexts contain the first SMs of the GPU, so shares overlap.
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

#: (minimum, step) of a share's SMs by major compute capability; _FROM_9 for 9 and above. Source: CUDA driver API,
#: "Green Contexts".
_GRANULARITY = {6: (1, 1), 7: (2, 2), 8: (4, 2)}
_FROM_9 = (8, 8)
#: Streams per share, assigned round-robin: callers never return them, and a GPU has few hardware queues.
_STREAMS = 16

#: (device index, SMs) -> the green context and its streams. A process keeps one share of each size until it ends,
#: because streams and captured graphs do not outlive their context.
_shares: dict[tuple[int, int], tuple[Any, Iterator[torch.cuda.Stream]]] = {}
#: CUDA's handle of each stream of a share -> its SMs.
_sms_of: dict[int, int] = {}
_lock = threading.RLock()


def supported() -> bool:
    """Whether PyTorch has green contexts with streams: from 2.11 on, built for CUDA 12.8 or newer."""
    try:
        from torch.cuda import green_contexts
    except ImportError:
        return False
    return bool(green_contexts.SUPPORTED) and hasattr(green_contexts.GreenContext, "Stream")


def sms_problem(device: torch.device, sms: int) -> str:
    """Why `device` cannot provide a share of `sms` SMs, and what is allowed, for a message; "" if it can."""
    if device.type != "cuda":
        return f"only an NVIDIA GPU can be partitioned; the device is {device}"
    if not supported():
        return (
            f"PyTorch {torch.__version__} has no CUDA green contexts; required: 2.11 or newer, built for CUDA 12.8 or "
            "newer"
        )
    properties = torch.cuda.get_device_properties(device)
    minimum, step = _GRANULARITY.get(properties.major, _FROM_9)
    count = properties.multi_processor_count
    if sms < minimum or sms > count or sms % step:
        return f"allowed: {minimum} to {count // step * step} in steps of {step} ({device} has {count} SMs)"
    return ""


def make_stream(device: torch.device, sms: int = 0, priority: int = 0) -> torch.cuda.Stream:
    """A stream on a share of `sms` SMs of a GPU; 0: on all of it. Thread-safe.

    priority: priority of the stream; ignored on a share. The first call for a share creates it; further calls return
    its streams round-robin. Raises RuntimeError if sms_problem() is not empty, or if CUDA fails.
    """
    if not sms:
        return torch.cuda.Stream(device, priority=priority)
    with _lock:
        key = (device.index or 0, sms)
        if key not in _shares:
            _shares[key] = _make_share(device, sms)
        return next(_shares[key][1])


def further_streams(stream: torch.cuda.Stream, device: torch.device, count: int) -> list[torch.cuda.Stream]:
    """`count` streams with the SMs of `stream`, all different from it and from each other.

    count: at most 15 on a share, which has 16 streams. They may also be in use elsewhere. Raises RuntimeError if there
    are fewer.
    """
    sms = _sms_of.get(stream.cuda_stream, 0)
    found: dict[int, torch.cuda.Stream] = {}
    with _lock:  # otherwise another thread could get some of the streams of each round
        for _ in range(_STREAMS + count):
            if len(found) < count and (offered := make_stream(device, sms)).cuda_stream != stream.cuda_stream:
                found[offered.cuda_stream] = offered
    if len(found) < count:
        raise RuntimeError(f"{device} provides {len(found)} further streams; required: {count}")
    return list(found.values())


def computing_on(device: torch.device, sms: int = 0) -> AbstractContextManager[Any]:
    """Context manager: the calling thread's current stream becomes one of the share's; with 0 SMs it is unchanged.

    A GPU is also made the current device; on a CPU nothing changes.
    """
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.stream(make_stream(device, sms)) if sms else torch.cuda.device(device)


def with_own_cudnn_plans(sms: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs in a new thread if it is for a share of the SMs.

    cuDNN caches its plan of a convolution per thread, regardless of the SMs, and a plan for a whole GPU can fail on few
    SMs (EXECUTION_FAILED on 8 SMs of an H200). sms: 0 for the whole GPU; `work` then runs in the calling thread.
    Otherwise `work` must select device and stream itself.
    """
    if not sms:
        return work()
    with ThreadPoolExecutor(1, thread_name_prefix=f"{sms} SMs") as thread:
        return thread.submit(work).result()


def _make_share(device: torch.device, sms: int) -> tuple[Any, Iterator[torch.cuda.Stream]]:
    from torch.cuda.green_contexts import GreenContext

    torch.zeros(1, device=device)  # a green context needs the primary context
    context: Any = GreenContext.create(sms, device.index or 0)
    streams = [context.Stream() for _ in range(_STREAMS)]
    _sms_of.update({stream.cuda_stream: sms for stream in streams})
    return context, itertools.cycle(streams)
