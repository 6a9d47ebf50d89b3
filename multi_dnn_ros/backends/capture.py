"""Functions that read and write fixed memory, captured as CUDA graphs: one launch each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.stream_graph import StreamGraph
from multi_dnn_ros.backends.stream_priority import capture_stream
from multi_dnn_ros.common.memory import gc_paused

#: Calls before capturing, in which libraries choose their algorithms and workspaces.
_WARM_UP_CALLS = 3

Launch = Callable[[], None]


class CapturedFunction:
    """A function of tensors that lie where they always do, as one launch. Its results do so too.

    function: nothing in it depends on values. source: what it is called with; anything else goes through the function
    itself. capture: as for PreprocessGraph. Raises what capturing raises.
    """

    def __init__(
        self, function: Callable[[Tensors], Tensors], source: Tensors, capture: Callable[[Launch], Launch]
    ) -> None:
        self._function = function
        self._source = source
        self._results: Tensors = ()
        self._replay = capture(self._run)

    def _run(self) -> None:
        self._results = self._function(self._source)

    def __call__(self, carried: Tensors) -> Tensors:
        if any(tensor is not place for tensor, place in zip(carried, self._source, strict=True)):
            return self._function(carried)
        self._replay()
        return self._results


def capture_on(device: torch.device) -> Callable[[Launch], Launch]:
    """Captures functions as CUDA graphs that share memory, and so must not run at the same time.

    All on one stream, the one that is now the calling thread's (see capture_stream).
    """
    pool = torch.cuda.graph_pool_handle()
    stream = capture_stream(device)

    def capture(run: Launch) -> Launch:
        torch.cuda.synchronize(device)
        replay: Launch = capture_graph(run, pool, stream).replay
        return replay

    return capture


def capture_graph(run: Callable[[], object], pool: Any, stream: torch.cuda.Stream) -> StreamGraph:
    """What `run` launches, as a graph in the memory of `pool`, captured on `stream` after a few calls to warm up.

    Its kernels have the priority of the stream that it is launched on, and the share of the SMs of `stream`. Graphs of
    one pool must not run at the same time; those of different pools may. Raises what capturing raises.
    """
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_CALLS):
            run()
    stream.synchronize()
    graph = StreamGraph()
    with (
        gc_paused(),
        _workspaces_in_the_pool(),
        torch.cuda.graph(graph.graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
    ):
        run()
    graph.finish(stream.device)
    return graph


class CudnnBenchmark:
    """Another backend; for several images at once cuDNN then tries its algorithms for each convolution.

    What it chooses by rules is slower for them (7 RegNetY-32GF at fp16 on an H200: 3.8 against 3.3 ms, decomposed 3.7
    against 2.8); for single images it is not (1.8 against 2.0). The choice belongs to the calling thread and to what it
    computes for the first time; the setting is the whole process's, and as it was afterwards.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def prepare(
        self,
        stages: Sequence[torch.nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """As the other backend does."""
        before = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = before or (bool(inputs) and len(inputs[0]) > 1)
        try:
            return self.backend.prepare(stages, inputs, device, shared)
        finally:
            torch.backends.cudnn.benchmark = before


@contextlib.contextmanager
def _workspaces_in_the_pool() -> Iterator[None]:
    """Have cuBLAS work in memory of the graph's own pool.

    PyTorch keeps a workspace for each stream. Captured as it is, graphs of several DNNs that were captured on one
    stream, as those on a share of the SMs are, would write to the same one at the same time
    (github.com/pytorch/pytorch/issues/193402). Without one, it is allocated while capturing.
    """
    forget = getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)
    forget()
    try:
        yield
    finally:
        forget()
