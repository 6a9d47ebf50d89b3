"""Arrays in shared memory: anonymous memory (memfd), passed between processes as a file descriptor."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from multi_dnn_ros.partition.executor import Array


@dataclass(frozen=True)
class BlockForm:
    """Shape of a whole array, and its dtype by NumPy's name."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Size of the mapping, at least one byte: an empty mapping is not possible."""
        return max(1, int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize)


class Block:
    """An array in shared memory, initially zero. The memory is freed when no process maps it any more."""

    def __init__(self, form: BlockForm) -> None:
        """Raises MemoryError if the memory cannot be allocated."""
        self.form = form
        self._descriptor = os.memfd_create("multi_dnn_ros.partition")
        try:
            os.ftruncate(self._descriptor, form.size_bytes)
            self.array = _mapped(self._descriptor, form)
        except OSError as error:
            os.close(self._descriptor)
            raise MemoryError(f"{form.size_bytes} bytes of shared memory cannot be allocated: {error}") from None

    def send(self, connection: Connection[Any, Any]) -> None:
        """Send the descriptor to the process at the other end, which calls :func:`receive_block`."""
        reduction.send_handle(connection, self._descriptor, None)

    def close(self) -> None:
        """Close the descriptor. The array stays valid as long as it is referenced."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def receive_block(connection: Connection[Any, Any], form: BlockForm) -> Array:
    """The array of a block sent by :meth:`Block.send`."""
    descriptor = reduction.recv_handle(connection)
    try:
        return _mapped(descriptor, form)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, form: BlockForm) -> Array:
    memory = mmap.mmap(descriptor, form.size_bytes)
    count = int(np.prod(form.shape))
    return np.frombuffer(memory, dtype=form.dtype, count=count).reshape(form.shape)
