"""How long a GPU takes for a call, without what launching it takes."""

from __future__ import annotations

from collections.abc import Callable

import torch

#: Calls that are timed at once, and clock cycles of a GPU in which the CPU launches them.
_CALLS, _HEAD_START = 10, 4_000_000


def gpu_ms(call: Callable[[], object]) -> float:
    """GPU time of a call, milliseconds. The GPU idles first: what is launched meanwhile follows without gaps."""
    for _ in range(2):
        call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_HEAD_START)
    begin.record()
    for _ in range(_CALLS):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / _CALLS
