"""Measures the GPU time of a call, without the time of launching it."""

from __future__ import annotations

from collections.abc import Callable

import torch

#: Calls per measurement.
_CALLS = 10
#: GPU clock cycles that the GPU sleeps while the CPU launches the calls, from the first to the last attempt.
_HEAD_STARTS = tuple(4_000_000 * 4**number for number in range(5))


def gpu_ms(call: Callable[[], object]) -> float:
    """Mean GPU time of a call in milliseconds.

    The GPU sleeps while the CPU launches the calls, so that they run without gaps. If the GPU wakes up before all are
    launched, because the CPU is slow or busy, the measurement is repeated with a longer sleep; the last attempt counts
    even with gaps.
    """
    for _ in range(2):
        call()
    for cycles in _HEAD_STARTS:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(cycles)
        begin.record()
        for _ in range(_CALLS):
            call()
        in_time = not begin.query()
        end.record()
        end.synchronize()
        if in_time:
            break
    return float(begin.elapsed_time(end)) / _CALLS
