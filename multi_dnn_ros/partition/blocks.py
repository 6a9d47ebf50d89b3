"""Arrays that several processes see: anonymous memory, handed from process to process as a file descriptor."""

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
    """shape: of the whole array. dtype: in NumPy's words."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """At least one byte, as nothing else can be mapped."""
        return max(1, int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize)


class Block:
    """An array in memory of its own, filled with zeros. The memory is gone with the last process that maps it."""

    def __init__(self, form: BlockForm) -> None:
        """MemoryError where the system has no room for it."""
        self.form = form
        self._descriptor = os.memfd_create("multi_dnn_ros.partition")
        try:
            os.ftruncate(self._descriptor, form.size_bytes)
            self.array = _mapped(self._descriptor, form)
        except OSError as error:
            os.close(self._descriptor)
            raise MemoryError(f"{form.size_bytes} bytes of shared memory are not to be had: {error}") from None

    def send(self, connection: Connection[Any, Any]) -> None:
        """To the process at the other end of a socket pair, which calls :func:`receive_block`."""
        reduction.send_handle(connection, self._descriptor, None)

    def close(self) -> None:
        """Give up the descriptor; the array stays valid as long as somebody refers to it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def receive_block(connection: Connection[Any, Any], form: BlockForm) -> Array:
    """The array that `Block.send` sent."""
    descriptor = reduction.recv_handle(connection)
    try:
        return _mapped(descriptor, form)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, form: BlockForm) -> Array:
    memory = mmap.mmap(descriptor, form.size_bytes)
    count = int(np.prod(form.shape))
    return np.frombuffer(memory, dtype=form.dtype, count=count).reshape(form.shape)
