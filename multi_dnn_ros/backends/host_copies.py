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

#: Types that NumPy has, too; copies of others are made by PyTorch.
_IN_NUMPY = frozenset(
    {
        torch.float64, torch.float32, torch.float16, torch.complex128, torch.complex64, torch.bool, torch.uint8,
        torch.int8, torch.int16, torch.int32, torch.int64,
    }
)  # fmt: skip
#: Number of combinations of shape and type with memory of their own; copies of further ones are made by PyTorch. Only
#: outputs whose shapes depend on the image have more.
_MAX_SHAPES = 256

Array = npt.NDArray[Any]


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Pinned memory for a copy of `tensor`."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def _allocate(tensor: torch.Tensor) -> Array:
    memory: Array = _pinned(tensor).numpy()
    return memory


def _copy_by_pytorch(tensor: torch.Tensor) -> torch.Tensor:
    return _pinned(tensor).copy_(tensor, non_blocking=True)


class HostCopies:
    """Makes the copies for one DNN. Any thread may call it; the inferences of the DNN must run one after the other.

    Memory is used again for tensors of the same shape and type once nothing refers to the copy, including results that
    share its memory. It is freed with this object, so its amount is that of the largest number of copies of each shape
    that were in use at the same time.

    allocate: returns pinned memory for a copy of a tensor.
    """

    def __init__(self, allocate: Callable[[torch.Tensor], Array] = _allocate) -> None:
        self._allocate = allocate
        # Memory that is not in use, with its address.
        self._free: defaultdict[tuple[torch.Size, torch.dtype], list[tuple[Array, int]]] = defaultdict(list)

    def start(self, tensor: torch.Tensor) -> torch.Tensor:
        """Enqueue a copy on the calling thread's current stream. It is valid once the stream has completed it."""
        key = tensor.shape, tensor.dtype
        has_room = key in self._free or len(self._free) < _MAX_SHAPES
        if tensor.dtype not in _IN_NUMPY or not tensor.is_contiguous() or not has_room:
            return _copy_by_pytorch(tensor)
        free = self._free[key]
        try:
            memory, address = free.pop()
        except IndexError:
            memory = self._allocate(tensor)
            address = memory.ctypes.data
        lent = memory.view()
        weakref.finalize(lent, free.append, (memory, address)).atexit = False
        enqueue_on(tensor.device).copy_to_host(address, tensor)
        return torch.from_numpy(lent)  # refers to `lent`, as does every view of its memory
