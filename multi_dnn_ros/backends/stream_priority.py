"""Priorities of CUDA streams that follow the priorities of DNNs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

#: CUDA has more on some GPUs; PyTorch keeps streams of four.
LEVELS = 4

StreamT = TypeVar("StreamT")


def stream_priorities(dnn_priorities: Iterable[int]) -> dict[int, int]:
    """The stream priority of each DNN priority: 0 for the lowest, one less (which goes first) for each above it.

    With more than LEVELS different ones, the highest share the last level.
    """
    return {priority: -min(rank, LEVELS - 1) for rank, priority in enumerate(sorted(set(dnn_priorities)))}


class Streams(Generic[StreamT]):
    """One worker's streams: one for each stream priority, made when it is first asked for.

    make: a stream of that priority. use: makes it the calling thread's current one.
    """

    def __init__(self, make: Callable[[int], StreamT], use: Callable[[StreamT], None]) -> None:
        self._make = make
        self._use = use
        self._streams: dict[int, StreamT] = {}
        self._current: int | None = None

    def enter(self, priority: int) -> None:
        """From here on the thread works on its stream of this priority."""
        if priority == self._current:
            return
        if priority not in self._streams:
            self._streams[priority] = self._make(priority)
        self._use(self._streams[priority])
        self._current = priority
