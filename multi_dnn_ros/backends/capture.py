"""Functions that read and write fixed memory, captured as CUDA graphs: one launch each."""

from __future__ import annotations

from collections.abc import Callable

import torch

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.stream_priority import capture_stream

_WARM_UP_CALLS = 3

Run = Callable[[], None]


class CapturedFunction:
    """A function of tensors that lie where they always do, as one launch. Its results do so too.

    function: nothing in it depends on values. source: what it is called with; anything else goes through the function
    itself. capture: as for PreprocessGraph. Raises what capturing raises.
    """

    def __init__(self, function: Callable[[Tensors], Tensors], source: Tensors, capture: Callable[[Run], Run]) -> None:
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


def capture_on(device: torch.device, priority: int = 0) -> Callable[[Run], Run]:
    """Captures functions as CUDA graphs that share memory, and so must not run at the same time.

    All on one stream, the one that is now the calling thread's (see capture_stream). priority: of a new one.
    """
    pool = torch.cuda.graph_pool_handle()
    stream = capture_stream(device, priority)

    def capture(run: Run) -> Run:
        torch.cuda.synchronize(device)
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_CALLS):
                run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            run()
        replay: Run = graph.replay
        return replay

    return capture
