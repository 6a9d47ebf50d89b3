"""Delays the GPU until the host has launched a whole step, so that time stamps contain no launch times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: Initial and maximum delay in GPU clock cycles: about 20 ms and 0.3 s.
_FIRST_CYCLES, _MAX_CYCLES = 1 << 25, 1 << 29


class LaunchDelay:
    """A delay that grows until it covers the time that launching takes.

    A GPU queues about a thousand launches before it blocks the host. The rest of a longer step is launched while it
    computes, which leaves no gaps unless launching takes twice as long as computing.
    """

    def __init__(self) -> None:
        self._cycles = _FIRST_CYCLES

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which a step is launched on the current stream; the GPU begins it after the delay."""
        torch.cuda._sleep(self._cycles)
        begun = torch.cuda.Event()
        begun.record()
        yield
        if begun.query():  # the GPU began before everything was launched
            self._cycles = min(4 * self._cycles, _MAX_CYCLES)
