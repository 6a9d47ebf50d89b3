"""Times of calls that follow one another on a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Work with which a GPU begins, so that the host has launched the calls before the first one starts: about 5 ms.
_DELAY_CYCLES = 1 << 23


def timed_ms(calls: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """Milliseconds of each call, run in order.

    On a CPU by the host's clock, on a GPU by CUDA events on the calling thread's current stream. These do not include
    launching, as long as the host launches everything in the 5 ms for which the stream is kept busy, or at least faster
    than the GPU computes.
    """
    if device.type != "cuda":
        stamps = [time.perf_counter()]
        for call in calls:
            call()
            stamps.append(time.perf_counter())
        return [1e3 * (after - before) for before, after in pairwise(stamps)]
    import torch

    stream = torch.cuda.current_stream(device)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
    torch.cuda._sleep(_DELAY_CYCLES)
    events[0].record(stream)
    for call, event in zip(calls, events[1:], strict=True):
        call()
        event.record(stream)
    stream.synchronize()  # only this stream: others may never be idle
    return [float(before.elapsed_time(after)) for before, after in pairwise(events)]


def synchronize(device: torch.device) -> None:
    """Wait for the work that this thread has launched."""
    if device.type == "cuda":
        import torch

        torch.cuda.current_stream(device).synchronize()
