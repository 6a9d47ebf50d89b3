"""CUDA graphs whose kernels run with the priority of the stream that the graph is launched on.

PyTorch 2.10 and newer instantiates its graphs with ``cudaGraphInstantiateFlagUseNodePriority``: kernels then keep the
priority of the stream that they were captured on (github.com/pytorch/pytorch/pull/167346), and a DNN whose priority
changes at run time would have to be captured again. CUDA's default is the priority of the launching stream. With such a
PyTorch, graphs are therefore instantiated and launched here through the driver.
"""

from __future__ import annotations

import ctypes
import re
import weakref

import torch

from multi_dnn_ros.backends.cuda_driver import Enqueue, check, driver, enqueue_on

#: CUgraphInstantiate_flags: memory allocated by a graph is freed when it is launched again, as in PyTorch.
_AUTO_FREE_ON_LAUNCH = 1


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
        self._enqueue: Enqueue | None = None

    def finish(self, device: torch.device) -> None:
        """Instantiate the graph, once after the capture on `device`. Raises RuntimeError or OutOfMemoryError."""
        if not self._uses_driver:
            return
        enqueue = enqueue_on(device)
        with torch.cuda.device(device):
            raw = ctypes.c_void_p(self.graph.raw_cuda_graph())
            flags = ctypes.c_ulonglong(_AUTO_FREE_ON_LAUNCH)
            check(driver().cuGraphInstantiateWithFlags(ctypes.byref(self._exec), raw, flags))
        # Not at exit: CUDA may already be shut down.
        weakref.finalize(self, driver().cuGraphExecDestroy, self._exec).atexit = False
        self._enqueue = enqueue

    def replay(self) -> None:
        """Launch on the calling thread's current stream. Raises RuntimeError or OutOfMemoryError."""
        if self._enqueue is None:
            self.graph.replay()
        else:
            self._enqueue.graph(self._exec.value)
