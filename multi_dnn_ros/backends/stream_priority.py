"""Maps the priorities of DNNs to priorities of CUDA streams, and selects a thread's current stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch

#: PyTorch has streams of four priorities; CUDA has more on some GPUs.
LEVELS = 4

KeyT = TypeVar("KeyT")
StreamT = TypeVar("StreamT")


def stream_priorities(dnn_priorities: Iterable[int]) -> dict[int, int]:
    """The stream priority of each DNN priority: 0 for the lowest, one less (more urgent) for each higher one.

    With more than LEVELS different priorities, the highest ones share the last level.
    """
    return {priority: -min(rank, LEVELS - 1) for rank, priority in enumerate(sorted(set(dnn_priorities)))}


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream for captures: the calling thread's current stream, or a new one instead of the default stream, which
    cannot capture.

    The kernels of a graph keep the SMs of the capture stream, whichever stream the graph is launched on; their priority
    is that of the launching stream (see StreamGraph).
    """
    stream = torch.cuda.current_stream(device)
    if stream == torch.cuda.default_stream(device):
        return torch.cuda.Stream(device)
    return stream


class ThreadStreams(Generic[KeyT, StreamT]):
    """Sets the current stream of one thread.

    get: returns the stream that a key has now, and keeps it alive. use: makes a stream the calling thread's current
    one.
    """

    def __init__(self, get: Callable[[KeyT], StreamT], use: Callable[[StreamT], None]) -> None:
        self._get = get
        self._use = use
        self._current: StreamT | None = None

    def enter(self, key: KeyT) -> StreamT:
        """Make the stream of `key` the current one, unless it is already; returns it."""
        stream = self._get(key)
        if stream is not self._current:
            self._use(stream)
            self._current = stream
        return stream
