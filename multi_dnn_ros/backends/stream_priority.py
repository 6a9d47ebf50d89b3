"""Priorities of CUDA streams that follow the priorities of DNNs, and the streams of a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch

#: CUDA has more on some GPUs; PyTorch keeps streams of four.
LEVELS = 4

KindT = TypeVar("KindT")
StreamT = TypeVar("StreamT")


def stream_priorities(dnn_priorities: Iterable[int]) -> dict[int, int]:
    """The stream priority of each DNN priority: 0 for the lowest, one less (which goes first) for each above it.

    With more than LEVELS different ones, the highest share the last level.
    """
    return {priority: -min(rank, LEVELS - 1) for rank, priority in enumerate(sorted(set(dnn_priorities)))}


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """What the calling thread captures on: its current stream, or a new one where that is the default stream, which
    cannot capture.

    The kernels of a graph keep the share of the SMs of the stream that they were captured on, wherever it is launched;
    their priority is that of the launching stream (see StreamGraph).
    """
    stream = torch.cuda.current_stream(device)
    if stream == torch.cuda.default_stream(device):
        return torch.cuda.Stream(device)
    return stream


class Streams(Generic[KindT, StreamT]):
    """The stream that each kind computes on, as one thread enters them.

    get: the stream of a kind as it is now; whoever gives it keeps it. use: makes a stream the calling thread's current
    one.
    """

    def __init__(self, get: Callable[[KindT], StreamT], use: Callable[[StreamT], None]) -> None:
        self._get = get
        self._use = use
        self._current: StreamT | None = None

    def enter(self, kind: KindT) -> StreamT:
        """From here on the thread works on the stream of this kind."""
        stream = self._get(kind)
        if stream is not self._current:
            self._use(stream)
            self._current = stream
        return stream
