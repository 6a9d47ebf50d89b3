"""How long a GPU takes for a call, without what launching it takes."""

from __future__ import annotations

from collections.abc import Callable

import torch

#: Calls that are timed at once.
_CALLS = 10
#: Clock cycles of the GPU in which the CPU launches them: on a fast computer, and tried at most.
_HEAD_STARTS = tuple(4_000_000 * 4**number for number in range(5))


def gpu_ms(call: Callable[[], object]) -> float:
    """GPU time of a call, milliseconds; of one that launches for seconds at a time with the gaps in between.

    The GPU idles first: what is launched meanwhile follows without gaps. If it went on before all of it was launched,
    for a computer that is slow or busy, it idles longer, and all is done again.
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
