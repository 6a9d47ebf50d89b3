"""Calls of the CUDA driver (libcuda), which every process that uses a GPU loads.

Each operation of PyTorch releases the GIL. If another thread computes in Python, getting it back takes up to the switch
interval of the interpreter, many times as long as the operation. Functions that only enqueue work on a GPU return after
microseconds and are therefore called here with the GIL held.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections import defaultdict
from typing import Any

import torch

#: CUresult
_OUT_OF_MEMORY, _NO_CONTEXT = 2, 201
#: Number of sizes of packed outputs with memory that is used again. Only outputs whose shapes depend on the image have
#: more; copies of further sizes are made by PyTorch.
_MAX_SIZES = 256

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_COPY = (_POINTER, _POINTER, _SIZE, _POINTER)
#: Functions that enqueue work, and the types of their arguments; the last argument is the stream.
_ENQUEUE = {
    "cuGraphLaunch": (_POINTER, _POINTER),
    "cuMemcpyHtoDAsync_v2": _COPY,
    "cuMemcpyDtoHAsync_v2": _COPY,
    "cuMemcpyDtoDAsync_v2": _COPY,
    "cuEventRecord": (_POINTER, _POINTER),
    "cuStreamWriteValue32_v2": (_POINTER, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint),
}


class Counter:
    """A number in page-locked memory that the GPU writes and the host reads without a call of the driver."""

    def __init__(self, enqueue: Enqueue) -> None:
        self._enqueue = enqueue
        self._word = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._value: Any = memoryview(self._word.numpy())  # type: ignore[arg-type]  # read faster than an array
        self._address = self._word.data_ptr()

    @property
    def value(self) -> int:
        """The number written last."""
        return int(self._value[0])

    def write(self, value: int) -> None:
        """Enqueue writing a number, after everything on the calling thread's current stream."""
        self._enqueue.write(self._address, value)


class Enqueue:
    """Enqueues work of one GPU on the calling thread's current stream. See enqueue_on; any thread may call the methods.

    They raise RuntimeError or torch.OutOfMemoryError, as PyTorch does. Tensors must be contiguous, and memory on the
    host pinned. If the GPU hangs and its queue is full, a call can block, and with it all threads of the process. The
    supervisor of an engine process then ends it, as it does if one thread hangs; with isolation `none` nothing does.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self._index = torch.cuda.current_device()
        # PyTorch's context. The calling thread may have none yet: PyTorch does not select a device that is current.
        self._context, handle = ctypes.c_void_p(), ctypes.c_int()
        check(driver().cuDeviceGet(ctypes.byref(handle), self._index))
        check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(self._context), handle))
        self._library = _driver_with_gil()

    def graph(self, executable: int | None) -> None:
        """Launch a graph. executable: its CUgraphExec."""
        self._call(self._library.cuGraphLaunch, executable)

    def copy_from_host(self, target: torch.Tensor, address: int) -> None:
        """Fill `target` on the GPU with the bytes at `address` on the host."""
        self._call(self._library.cuMemcpyHtoDAsync_v2, target.data_ptr(), address, target.nbytes)

    def copy_to_host(self, address: int, source: torch.Tensor) -> None:
        """Copy the bytes of `source` on the GPU to `address` on the host."""
        if source.nbytes:
            self._call(self._library.cuMemcpyDtoHAsync_v2, address, source.data_ptr(), source.nbytes)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy the bytes of `source` to `target`, both on the GPU and of the same size."""
        self._call(self._library.cuMemcpyDtoDAsync_v2, target.data_ptr(), source.data_ptr(), source.nbytes)

    def record(self, event: torch.cuda.Event) -> None:
        """Record an event, which PyTorch must have recorded before: the first time creates it."""
        self._call(self._library.cuEventRecord, event.cuda_event)

    def counter(self) -> Counter:
        """A new counter."""
        return Counter(self)

    def write(self, address: int, value: int) -> None:
        """Write a 32-bit number to page-locked memory of the host, after everything before it has ended."""
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        check(self._library.cuStreamWriteValue32_v2(stream, address, value, 0))

    def _call(self, function: Any, *arguments: int | None) -> None:
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        result = function(*arguments, stream)
        if result == _NO_CONTEXT:  # the first CUDA call of this thread
            check(driver().cuCtxSetCurrent(self._context))
            result = function(*arguments, stream)
        if result:
            check(result)


@functools.cache
def enqueue_on(device: torch.device) -> Enqueue:
    """The functions for `device`, a GPU with its index."""
    return Enqueue(device)


class HostCopies:
    """Copies the packed outputs of one DNN, (N,) uint8 on a GPU, to pinned memory; for one thread.

    PyTorch's allocator of pinned memory and its copies release the GIL several times. Memory is used again once nothing
    refers to the copy, including results that share its memory. It is freed with this object, so its amount is that of
    the largest number of copies of each size that were in use at the same time.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[tuple[Any, int]]] = defaultdict(list)  # arrays and addresses, by size

    def start(self, packed: torch.Tensor) -> torch.Tensor:
        """Enqueue a copy on the calling thread's current stream. It is valid once the stream has completed it."""
        size = packed.numel()
        if size not in self._free and len(self._free) == _MAX_SIZES:
            return torch.empty_like(packed, device="cpu", pin_memory=True).copy_(packed, non_blocking=True)
        free = self._free[size]
        if free:
            memory, address = free.pop()
        else:
            memory = torch.empty(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available()).numpy()
            address = memory.ctypes.data
        lent = memory.view()
        weakref.finalize(lent, free.append, (memory, address)).atexit = False
        enqueue_on(packed.device).copy_to_host(address, packed)
        return torch.from_numpy(lent)  # refers to `lent`, as does every view of its memory


@functools.cache
def driver() -> Any:
    """The driver's library. ctypes releases the GIL during each call."""
    return ctypes.CDLL("libcuda.so.1")


def check(result: int) -> None:
    """Raise the exception that PyTorch would raise for this CUresult."""
    if not result:
        return
    text = ctypes.c_char_p()
    driver().cuGetErrorString(result, ctypes.byref(text))
    words = (text.value or b"unknown error").decode()
    if result == _OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(f"CUDA error: {words}")
    raise RuntimeError(f"CUDA error: {words} (CUresult {result})")


@functools.cache
def _driver_with_gil() -> Any:
    """The driver's library, for the functions that enqueue work. The GIL is held during each call."""
    library = ctypes.PyDLL("libcuda.so.1")
    for name, arguments in _ENQUEUE.items():
        getattr(library, name).argtypes = arguments
    return library
