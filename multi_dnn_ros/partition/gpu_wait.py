"""Waits for a GPU with little delay and without occupying a core for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

#: For how long a GPU is polled before and after the expected end of its work.
POLLED_S = 0.3e-3


class Mark(Protocol):
    """A blocking torch.cuda.Event."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


def wait_for(
    mark: Mark,
    expected_s: float,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until a GPU has reached an event, which is expected at the time `expected_s` of `clock`.

    Waking up from a blocking wait takes 0.1 to 0.3 ms, so the event is polled around the expected time. Polling from
    the start would keep another unit off the core for a whole batch.
    """
    sleep(max(0.0, expected_s - POLLED_S - clock()))
    while not mark.query():
        if clock() > expected_s + POLLED_S:
            mark.synchronize()
            return
        sleep(0.0)  # releases the GIL for the other units of the GPU
