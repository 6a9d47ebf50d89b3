"""What an engine process is computing, in shared memory: readable even when the process hangs or has ended.

It is one row of int64 times in nanoseconds on the monotonic clock, which all processes share: the last heartbeat, the
start of decoding an image, then for each DNN the start of its running job (0: nothing is running). An aligned 8-byte
store is atomic.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

_ITEM_BYTES = 8
_HEARTBEAT, _IMAGE, _FIRST_DNN = range(3)


class SharedStatus:
    """Written by one engine process, read by the node's. dnns: in the order of the columns. fd: the memory (memfd)."""

    def __init__(self, dnns: Sequence[str], fd: int) -> None:
        self.dnns = tuple(dnns)
        self._columns = {name: column for column, name in enumerate(dnns, start=_FIRST_DNN)}
        self._row = np.frombuffer(mmap.mmap(fd, _size(dnns)), dtype=np.int64)

    # -- the engine process

    def set_heartbeat(self, now_ns: int) -> None:
        """Record that the process is able to run Python code."""
        self._row[_HEARTBEAT] = now_ns

    def image_started(self, now_ns: int) -> None:
        """Decoding of an image started."""
        self._row[_IMAGE] = now_ns

    def image_done(self) -> None:
        """No image is being decoded any more."""
        self._row[_IMAGE] = 0

    def job_started(self, dnn: str, now_ns: int) -> None:
        """A job of the DNN started (on a GPU: was launched)."""
        self._row[self._columns[dnn]] = now_ns

    def jobs_done(self, dnn: str) -> None:
        """No job of the DNN is running any more (on a GPU: its outputs have arrived)."""
        self._row[self._columns[dnn]] = 0

    # -- the node's process

    def last_heartbeat_ns(self) -> int:
        """Time of the last heartbeat; 0: there was none yet."""
        return int(self._row[_HEARTBEAT])

    def image_since_ns(self) -> int | None:
        """Start of decoding an image; None: none is being decoded."""
        return int(self._row[_IMAGE]) or None

    def running_jobs(self) -> dict[str, int]:
        """By DNN, the start of its running job; DNNs without one are left out."""
        return {name: since for name, column in self._columns.items() if (since := int(self._row[column]))}

    def close(self) -> None:
        """Free the memory and the descriptor that mmap keeps; the last values remain readable."""
        self._row = self._row.copy()


def create_status_memory(dnns: Sequence[str]) -> int:
    """File descriptor of new memory for a SharedStatus, all zeros; the caller closes it."""
    fd = os.memfd_create("multi_dnn_ros/status", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, _size(dnns))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _size(dnns: Sequence[str]) -> int:
    return _ITEM_BYTES * (_FIRST_DNN + len(dnns))
