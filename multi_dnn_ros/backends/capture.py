"""Captures functions that read and write fixed memory as CUDA graphs: one launch each."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from multi_dnn_ros.backends.cuda_driver import check, driver, enqueue_on

#: Calls before the capture, in which libraries choose their algorithms and allocate workspaces.
_WARM_UP_CALLS = 3

#: CUgraphInstantiate_flags: memory allocated by a graph is freed when it is launched again, as in PyTorch.
_AUTO_FREE_ON_LAUNCH = 1

Launch = Callable[[], None]


class StreamGraph:
    """A captured graph whose kernels have the priority of the stream that it is launched on. Random numbers are the
    same in each launch.

    It is instantiated and launched through the driver. PyTorch 2.10 and newer instantiates its graphs with
    ``cudaGraphInstantiateFlagUseNodePriority``: kernels then keep the priority of the stream that they were captured on
    (github.com/pytorch/pytorch/pull/167346), and a DNN whose priority changes would have to be captured again.

    graph: captured on `device`. Raises RuntimeError or OutOfMemoryError, as `replay` does.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
        self._graph = graph  # kept alive: it owns the memory
        self._exec = ctypes.c_void_p()
        self._enqueue = enqueue_on(device)
        with torch.cuda.device(device):
            raw = ctypes.c_void_p(graph.raw_cuda_graph())
            flags = ctypes.c_ulonglong(_AUTO_FREE_ON_LAUNCH)
            check(driver().cuGraphInstantiateWithFlags(ctypes.byref(self._exec), raw, flags))
        # Not at exit: CUDA may already be shut down.
        weakref.finalize(self, driver().cuGraphExecDestroy, self._exec).atexit = False

    def replay(self) -> None:
        """Launch on the calling thread's current stream."""
        self._enqueue.graph(self._exec.value)


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection inside the block. Affects the whole process, so blocks in several threads must not
    overlap.

    Needed while a CUDA graph is captured, because destroying a collected CUDA graph would abort the capture.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def capture_on(device: torch.device) -> Callable[[Launch], Launch]:
    """A function that captures its argument as a CUDA graph and returns the replay.

    All its graphs share memory, so they must not run at the same time. They are captured on the calling thread's
    current stream (see capture_stream).
    """
    pool = torch.cuda.graph_pool_handle()
    stream = capture_stream(device)

    def capture(run: Launch) -> Launch:
        torch.cuda.synchronize(device)
        replay: Launch = capture_graph(run, pool, stream).replay
        return replay

    return capture


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream for captures: the calling thread's current stream, or a new one instead of the default stream, which
    cannot capture.

    The kernels of a graph keep the SMs of the capture stream, whichever stream the graph is launched on; their priority
    is that of the launching stream (see StreamGraph).
    """
    stream = torch.cuda.current_stream(device)
    return torch.cuda.Stream(device) if stream == torch.cuda.default_stream(device) else stream


def capture_graph(run: Callable[[], object], pool: Any, stream: torch.cuda.Stream) -> StreamGraph:
    """Capture the launches of `run` on `stream`, after a few warm-up calls, with memory from `pool`.

    The graph's kernels have the priority of the stream that the graph is launched on, and the SMs of `stream`. Graphs
    of one pool must not run at the same time; those of different pools may. Raises what the capture raises.
    """
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_CALLS):
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with (
        gc_paused(),
        _workspaces_in_the_pool(),
        torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        run()
    return StreamGraph(graph, stream.device)


@contextlib.contextmanager
def cudnn_benchmark(enabled: bool) -> Iterator[None]:
    """Context in which cuDNN times its algorithms for each convolution (torch.backends.cudnn.benchmark), if enabled.

    For batches, cuDNN's heuristics choose slower algorithms (7 RegNetY-32GF at fp16 on an H200: 3.8 ms instead of 3.3,
    decomposed 3.7 instead of 2.8), but not for single images (1.8 instead of 2.0). cuDNN keeps the choice per thread;
    the setting is global to the process and is restored afterwards.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or enabled
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextlib.contextmanager
def _workspaces_in_the_pool() -> Iterator[None]:
    """Make cuBLAS allocate its workspace in the graph's memory pool.

    PyTorch keeps one cuBLAS workspace per stream, and a capture would use it. Graphs of several DNNs captured on one
    stream, such as that of a share of the SMs, would then write to the same workspace at the same time
    (github.com/pytorch/pytorch/issues/193402). Once it is freed, the capture allocates a new one.
    """
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    clear()
    try:
        yield
    finally:
        clear()
