"""Clocks that mark the places of a run, and what a mark itself costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch


class Clock(Protocol):
    """Marks `places` of one run, each once, in order."""

    def prepare(self, places: int) -> None:
        """Make room for marks 0 to places - 1. Before the run is captured or started."""
        ...

    def mark(self, place: int) -> None:
        """Note the time at a place, on the calling thread's current stream."""
        ...

    def gaps_ms(self) -> list[float]:
        """Milliseconds from each mark to the next, once everything that was launched has ended."""
        ...


class HostClock:
    """For CPUs, where an operation has ended when its call returns. read: nanoseconds."""

    def __init__(self, read: Callable[[], int] = time.perf_counter_ns) -> None:
        self._read = read
        self._at: list[int] = []

    def prepare(self, places: int) -> None:
        self._at = [0] * places

    def mark(self, place: int) -> None:
        self._at[place] = self._read()

    def gaps_ms(self) -> list[float]:
        return [(after - before) / 1e6 for before, after in zip(self._at, self._at[1:], strict=False)]


class DeviceClock:
    """CUDA events. They are external ones: captured in a graph they are recorded anew with every replay."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def prepare(self, places: int) -> None:
        self._events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(places)]

    def mark(self, place: int) -> None:
        self._events[place].record(torch.cuda.current_stream(self._device))

    def gaps_ms(self) -> list[float]:
        # This thread's stream alone: others may never run dry. Not the last event: before a replay has reached it, it
        # counts as done since the replay before.
        torch.cuda.current_stream(self._device).synchronize()
        pairs = zip(self._events, self._events[1:], strict=False)
        return [float(before.elapsed_time(after)) for before, after in pairs]


def clock_for(device: torch.device) -> Clock:
    """The clock that times what runs on `device`."""
    return DeviceClock(device) if device.type == "cuda" else HostClock()
