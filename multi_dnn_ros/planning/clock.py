"""Clocks that take time stamps during a run, and the cost of taking one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch


class Clock(Protocol):
    """Takes the time stamps ("marks") 0, 1, 2, ... of one run, each once and in order."""

    def prepare(self, count: int) -> None:
        """Allocate marks 0 to count - 1. Called before the run is captured or started."""
        ...

    def mark(self, index: int) -> None:
        """Take time stamp `index`, on a GPU on the calling thread's current stream."""
        ...

    def gaps_ms(self) -> list[float]:
        """Milliseconds between consecutive marks; waits until the launched work has finished."""
        ...


class HostClock:
    """Clock for CPUs, where an operation has finished when its call returns. read: reads a clock in nanoseconds."""

    def __init__(self, read: Callable[[], int] = time.perf_counter_ns) -> None:
        self._read = read
        self._at: list[int] = []

    def prepare(self, count: int) -> None:
        self._at = [0] * count

    def mark(self, index: int) -> None:
        self._at[index] = self._read()

    def gaps_ms(self) -> list[float]:
        return [(after - before) / 1e6 for before, after in zip(self._at, self._at[1:], strict=False)]


class DeviceClock:
    """Clock of CUDA events. They are external events: a captured graph records them again on every replay."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def prepare(self, count: int) -> None:
        self._events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(count)]

    def mark(self, index: int) -> None:
        self._events[index].record(torch.cuda.current_stream(self._device))

    def gaps_ms(self) -> list[float]:
        # Synchronize this thread's stream only: others may never be idle. Waiting for the last event would not do:
        # until a replay reaches it, it counts as complete from the previous replay.
        torch.cuda.current_stream(self._device).synchronize()
        pairs = zip(self._events, self._events[1:], strict=False)
        return [float(before.elapsed_time(after)) for before, after in pairs]


def clock_for(device: torch.device) -> Clock:
    """The clock for work on `device`."""
    return DeviceClock(device) if device.type == "cuda" else HostClock()
