"""Priorities of CUDA streams that follow the priorities of DNNs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

#: CUDA has more on some GPUs; PyTorch keeps streams of four.
LEVELS = 4

KeyT = TypeVar("KeyT")
StreamT = TypeVar("StreamT")


def stream_priorities(dnn_priorities: Iterable[int]) -> dict[int, int]:
    """The stream priority of each DNN priority: 0 for the lowest, one less (which goes first) for each above it.

    With more than LEVELS different ones, the highest share the last level.
    """
    return {priority: -min(rank, LEVELS - 1) for rank, priority in enumerate(sorted(set(dnn_priorities)))}


class Streams(Generic[KeyT, StreamT]):
    """The stream that each key computes on, as one thread enters them.

    get: the stream of a key, asked for once a key. use: makes a stream the calling thread's current one.
    """

    def __init__(self, get: Callable[[KeyT], StreamT], use: Callable[[StreamT], None]) -> None:
        self._get = get
        self._use = use
        self._streams: dict[KeyT, StreamT] = {}
        self._current: KeyT | None = None

    def enter(self, key: KeyT) -> StreamT:
        """From here on the thread works on the stream of this key."""
        if key not in self._streams:
            self._streams[key] = self._get(key)
        stream = self._streams[key]
        if key != self._current:
            self._use(stream)
            self._current = key
        return stream
