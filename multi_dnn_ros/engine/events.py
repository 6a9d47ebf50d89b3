"""A pool of CUDA events: creating and destroying an event costs more than recording it.

A thread that waits for a blocking event sleeps. Waiting for any other event occupies a core until the kernels have run.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from multi_dnn_ros.backends.cuda_driver import enqueue_on


class EventPool:
    """Timing events of one device. Thread-safe: list operations are atomic."""

    def __init__(self) -> None:
        self._free: list[torch.cuda.Event] = []

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Record an event on `stream`, the calling thread's current one, after everything launched there so far."""
        try:
            event = self._free.pop()
        except IndexError:
            event = torch.cuda.Event(enable_timing=True, blocking=True)
            event.record(stream)
        else:
            enqueue_on(stream.device).record(event)
        return event

    def release(self, events: Iterable[torch.cuda.Event]) -> None:
        """Return events that no thread waits for or reads any more."""
        self._free.extend(events)
