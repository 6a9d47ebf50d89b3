"""What an engine is computing, in memory that its process shares with the node's: readable when it hangs or has ended.

It is one row of int64: the last heartbeat, the GPU memory allocated and reserved, then for each DNN the start of its
running job (0: nothing is running). Times are nanoseconds on the monotonic clock, which all processes share. An aligned
8-byte store is atomic.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from multi_dnn_ros.engine.reports import Observer
from multi_dnn_ros.serving.slots import create_memory

_HEARTBEAT, _ALLOCATED, _RESERVED, _FIRST_DNN = range(4)


class EngineState(Observer):
    """Written by one engine, read by the node's process. fd: the memory, from :func:`create_state`.

    on_failed: called in the engine with the error of the device.
    """

    def __init__(
        self, dnns: Sequence[str], fd: int, on_failed: Callable[[BaseException], None] = lambda error: None
    ) -> None:
        self.dnns = tuple(dnns)
        self._row = np.frombuffer(mmap.mmap(fd, 8 * (_FIRST_DNN + len(dnns))), dtype=np.int64)
        self._columns = {name: column for column, name in enumerate(dnns, start=_FIRST_DNN)}
        self._running = dict.fromkeys(dnns, 0)
        self._lock = threading.Lock()
        self.on_failed = on_failed

    # -- in the engine

    def beat(self) -> None:
        """Record that the engine is able to run Python code."""
        self._row[_HEARTBEAT] = time.monotonic_ns()

    def set_gpu_memory(self, allocated_bytes: int, reserved_bytes: int) -> None:
        self._row[_ALLOCATED], self._row[_RESERVED] = allocated_bytes, reserved_bytes

    def began(self, dnn: str) -> None:
        self._count(dnn, 1)

    def ended(self, dnn: str) -> None:
        """A GPU runs the operations of a DNN in order: the next one has only just started; its time counts from now."""
        self._count(dnn, -1)

    def device_failed(self, dnn: str, error: BaseException) -> None:
        self.on_failed(error)

    def _count(self, dnn: str, change: int) -> None:
        with self._lock:
            self._running[dnn] += change
            if change < 0 or self._running[dnn] == 1:
                self._row[self._columns[dnn]] = time.monotonic_ns() if self._running[dnn] else 0

    # -- in the node's process

    def heartbeat_ns(self) -> int:
        """Time of the last heartbeat; 0: there was none yet."""
        return int(self._row[_HEARTBEAT])

    def gpu_memory(self) -> dict[str, int]:
        """By name with the unit; empty without a GPU."""
        if not self._row[_RESERVED]:
            return {}
        allocated, reserved = int(self._row[_ALLOCATED]), int(self._row[_RESERVED])
        return {"GPU allocated (bytes)": allocated, "GPU reserved (bytes)": reserved}

    def running_jobs(self) -> dict[str, int]:
        """By DNN, the start of its running job; DNNs without one are left out."""
        return {name: since for name, column in self._columns.items() if (since := int(self._row[column]))}

    def close(self) -> None:
        """Free the memory and the descriptor that mmap keeps; the last values remain readable."""
        self._row = self._row.copy()


def create_state(dnns: Sequence[str]) -> int:
    """File descriptor of new memory for an EngineState; the caller closes it. Raises OSError."""
    return create_memory("state", 8 * (_FIRST_DNN + len(dnns)))
