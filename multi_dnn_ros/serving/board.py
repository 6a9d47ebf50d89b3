"""What an engine process is doing at this moment, in shared memory: readable also when the process hangs or is gone.

One row of int64 on the monotonic clock (nanoseconds), which all processes share: first the heartbeat, then, for each
DNN, since when its job has been running (0: none runs). An aligned store of 8 bytes is atomic.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

_BYTES = 8


class Board:
    """Written by one engine process, read by the node's. dnns: in the order of the columns. fd: of the memory."""

    def __init__(self, dnns: Sequence[str], fd: int) -> None:
        self.dnns = tuple(dnns)
        self._columns = {name: place for place, name in enumerate(dnns, start=1)}
        self._row = np.frombuffer(mmap.mmap(fd, _size(dnns)), dtype=np.int64)

    # -- the engine process

    def beat(self, now_ns: int) -> None:
        """The process runs Python code."""
        self._row[0] = now_ns

    def began(self, dnn: str, now_ns: int) -> None:
        """A job of the DNN was started (on a GPU: launched)."""
        self._row[self._columns[dnn]] = now_ns

    def ended(self, dnn: str) -> None:
        """No job of the DNN runs any more (on a GPU: its outputs have arrived)."""
        self._row[self._columns[dnn]] = 0

    # -- the node's process

    def last_beat_ns(self) -> int:
        """0: it has not begun yet."""
        return int(self._row[0])

    def under_way(self) -> dict[str, int]:
        """By DNN, since when its job has been running; DNNs without one are left out."""
        return {name: since for name, place in self._columns.items() if (since := int(self._row[place]))}

    def close(self) -> None:
        """Give the memory, and the descriptor that mmap keeps, back; what stood there last can still be read."""
        self._row = self._row.copy()


def board_fd(dnns: Sequence[str]) -> int:
    """New memory for a board, all zeros; the caller closes it."""
    fd = os.memfd_create("multi_dnn_ros/board", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, _size(dnns))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _size(dnns: Sequence[str]) -> int:
    return _BYTES * (1 + len(dnns))
