"""CUDA events that are used again: to make and destroy one costs more than to record it."""

from __future__ import annotations

from collections.abc import Iterable

import torch


class EventPool:
    """Timing events of one device. Any thread may take and give back; lists do both in one step."""

    def __init__(self) -> None:
        self._free: list[torch.cuda.Event] = []

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """An event that stands for what was launched on `stream` until now."""
        try:
            event = self._free.pop()
        except IndexError:
            event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def release(self, events: Iterable[torch.cuda.Event]) -> None:
        """EventPool that nobody waits for or reads any more."""
        self._free.extend(events)
