"""Copies of tensors of a GPU in pinned memory on the host, which is reused.

PyTorch's allocator of pinned memory and its copies release the GIL several times per tensor; see
:mod:`multi_dnn_ros.backends.cuda_driver`.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch

from multi_dnn_ros.backends.cuda_driver import enqueue_on

#: Types that NumPy does not have; their copies are made by PyTorch.
_NOT_IN_NUMPY = frozenset({torch.bfloat16, torch.complex32})

Array = npt.NDArray[Any]


def _allocate(tensor: torch.Tensor) -> Array:
    """Pinned memory for a copy of `tensor`."""
    memory: Array = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).numpy()
    return memory


class HostCopies:
    """Makes the copies for one DNN. Any thread may call it; the inferences of the DNN must run one after the other.

    Memory is used again once nothing refers to the copy, including results that share its memory. It is never freed, so
    its amount is that of the largest number of copies that were in use at the same time.

    allocate: returns pinned memory for a copy of a tensor.
    """

    def __init__(self, allocate: Callable[[torch.Tensor], Array] = _allocate) -> None:
        self._allocate = allocate
        # Memory that is not in use, with its address.
        self._free: defaultdict[tuple[torch.Size, torch.dtype], list[tuple[Array, int]]] = defaultdict(list)

    def start(self, tensor: torch.Tensor) -> torch.Tensor:
        """Enqueue a copy on the calling thread's current stream. It is valid once the stream has completed it."""
        if tensor.dtype in _NOT_IN_NUMPY or not tensor.is_contiguous():
            return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
        free = self._free[tensor.shape, tensor.dtype]
        try:
            memory, address = free.pop()
        except IndexError:
            memory = self._allocate(tensor)
            address = memory.ctypes.data
        lent = memory.view()
        weakref.finalize(lent, free.append, (memory, address)).atexit = False
        enqueue_on(tensor.device).copy_to_host(address, tensor)
        return torch.from_numpy(lent)  # refers to `lent`, as does every view of its memory
