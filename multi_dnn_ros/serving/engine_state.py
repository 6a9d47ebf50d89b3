"""What an engine is computing, in memory that its process shares with the node's: readable when it hangs or has ended.

It is one row of int64 times in nanoseconds on the monotonic clock, which all processes share: the last heartbeat, the
start of decoding an image, then for each DNN the start of its running job (0: nothing is running). An aligned 8-byte
store is atomic.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

_ITEM_BYTES = 8
_HEARTBEAT, _IMAGE, _FIRST_DNN = range(3)


class EngineState:
    """Written by one engine, read by the node's process. dnns: in the order of the columns. fd: the memory (memfd)."""

    def __init__(self, dnns: Sequence[str], fd: int) -> None:
        self.dnns = tuple(dnns)
        self._columns = {name: column for column, name in enumerate(dnns, start=_FIRST_DNN)}
        self._row = np.frombuffer(mmap.mmap(fd, _size(dnns)), dtype=np.int64)

    def beat(self) -> None:
        """Record that the engine's process is able to run Python code."""
        self._row[_HEARTBEAT] = time.monotonic_ns()

    def set_image(self, decoding: bool) -> None:
        """Decoding of an image has started, or has ended."""
        self._row[_IMAGE] = time.monotonic_ns() if decoding else 0

    def set_job(self, dnn: str, running: bool) -> None:
        """A job of the DNN has started (on a GPU: was launched), or none is running any more."""
        self._row[self._columns[dnn]] = time.monotonic_ns() if running else 0

    def heartbeat_ns(self) -> int:
        """Time of the last heartbeat; 0: there was none yet."""
        return int(self._row[_HEARTBEAT])

    def image_ns(self) -> int:
        """Start of decoding an image; 0: none is being decoded."""
        return int(self._row[_IMAGE])

    def running_jobs(self) -> dict[str, int]:
        """By DNN, the start of its running job; DNNs without one are left out."""
        return {name: since for name, column in self._columns.items() if (since := int(self._row[column]))}

    def close(self) -> None:
        """Free the memory and the descriptor that mmap keeps; the last values remain readable."""
        self._row = self._row.copy()


class JobObserver:
    """An :class:`multi_dnn_ros.engine.observer.Observer` that writes the state. on_failed: called with the error of the
    device.

    A GPU runs the operations of a DNN in order: when one ends, the next one has only just started, so its time counts
    from then.
    """

    def __init__(self, state: EngineState, on_failed: Callable[[BaseException], None]) -> None:
        self._state = state
        self._on_failed = on_failed
        self._running = dict.fromkeys(state.dnns, 0)
        self._lock = threading.Lock()
        state.set_image(False)
        for dnn in state.dnns:
            state.set_job(dnn, False)

    def began(self, dnn: str) -> None:
        with self._lock:
            self._running[dnn] += 1
            if self._running[dnn] == 1:
                self._state.set_job(dnn, True)

    def ended(self, dnn: str) -> None:
        with self._lock:
            self._running[dnn] -= 1
            self._state.set_job(dnn, self._running[dnn] > 0)

    def image_began(self) -> None:
        self._state.set_image(True)

    def image_ended(self) -> None:
        self._state.set_image(False)

    def device_failed(self, dnn: str, error: BaseException) -> None:
        self._on_failed(error)


def create_state_memory(dnns: Sequence[str]) -> int:
    """File descriptor of new memory for an EngineState, all zeros; the caller closes it."""
    fd = os.memfd_create("multi_dnn_ros/state", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, _size(dnns))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _size(dnns: Sequence[str]) -> int:
    return _ITEM_BYTES * (_FIRST_DNN + len(dnns))
