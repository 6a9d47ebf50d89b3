"""Delays the GPU until the host has launched a whole step, so that time stamps measure only computation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: GPU clock cycles of the first and the longest delay: about 20 ms and 0.3 s.
_FIRST_CYCLES, _MOST_CYCLES = 1 << 25, 1 << 29


class LaunchDelay:
    """Adapts the delay to the time that launching takes.

    A GPU accepts about a thousand launches before it blocks the host. The host launches the rest of a longer step while
    the GPU computes, which leaves no gaps unless launching takes twice as long as computing.
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
        if begun.query():  # the GPU began before all was launched
            self._cycles = min(4 * self._cycles, _MOST_CYCLES)
