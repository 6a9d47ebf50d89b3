"""CUDA graphs whose kernels run with the priority of the stream that the graph is launched on.

PyTorch 2.10 and newer instantiates its graphs with ``cudaGraphInstantiateFlagUseNodePriority``: kernels then keep the
priority of the stream that they were captured on (github.com/pytorch/pytorch/pull/167346), and a DNN whose priority
changes at run time would have to be captured again. CUDA's default is the priority of the launching stream. With such a
PyTorch, graphs are therefore instantiated and launched here through libcuda, which every process that uses a GPU loads.
"""

from __future__ import annotations

import ctypes
import functools
import re
import weakref
from typing import Any

import torch

#: CUgraphInstantiate_flags: memory allocated by a graph is freed when it is launched again, as in PyTorch.
_AUTO_FREE_ON_LAUNCH = 1
#: CUresult
_OUT_OF_MEMORY, _NO_CONTEXT = 2, 201


def keeps_priority_of_capture(version: str) -> bool:
    """Whether graphs instantiated by this version of PyTorch keep the priority of the capture stream."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers.group(1)), int(numbers.group(2))) >= (2, 10)


class StreamGraph:
    """One captured graph. graph: to be captured by ``torch.cuda.graph``; `finish` must be called afterwards.

    Random numbers are the same in each launch.
    """

    def __init__(self) -> None:
        self._uses_driver = keeps_priority_of_capture(torch.__version__)
        self.graph = torch.cuda.CUDAGraph(keep_graph=True) if self._uses_driver else torch.cuda.CUDAGraph()
        self._exec = ctypes.c_void_p()
        self._context = ctypes.c_void_p()
        self._device = 0

    def finish(self, device: torch.device) -> None:
        """Instantiate the graph, once after the capture on `device`. Raises RuntimeError or OutOfMemoryError."""
        if not self._uses_driver:
            return
        driver = _driver()
        with torch.cuda.device(device):
            self._device = torch.cuda.current_device()
            _check(driver.cuCtxGetCurrent(ctypes.byref(self._context)))
            raw = ctypes.c_void_p(self.graph.raw_cuda_graph())
            flags = ctypes.c_ulonglong(_AUTO_FREE_ON_LAUNCH)
            _check(driver.cuGraphInstantiateWithFlags(ctypes.byref(self._exec), raw, flags))
        # Not at exit: CUDA may already be shut down.
        weakref.finalize(self, driver.cuGraphExecDestroy, self._exec).atexit = False
        self._launch = driver.cuGraphLaunch

    def replay(self) -> None:
        """Launch on the calling thread's current stream, without the GIL. Raises RuntimeError or OutOfMemoryError."""
        if not self._uses_driver:
            self.graph.replay()
            return
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(self._device))
        result = self._launch(self._exec, stream)
        if result == _NO_CONTEXT:  # the first CUDA call of this thread
            _check(_driver().cuCtxSetCurrent(self._context))
            result = self._launch(self._exec, stream)
        if result:
            _check(result)


@functools.cache
def _driver() -> Any:
    """The driver's library. ctypes releases the GIL during each call."""
    return ctypes.CDLL("libcuda.so.1")


def _check(result: int) -> None:
    """Raise the exception that PyTorch would raise for this CUresult."""
    if not result:
        return
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(result, ctypes.byref(text))
    words = (text.value or b"unknown error").decode()
    if result == _OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(f"CUDA error: {words}")
    raise RuntimeError(f"CUDA error: {words} (CUresult {result})")
