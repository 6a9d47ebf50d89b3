"""Host time of launching a job."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from multi_dnn_ros.backends import StaticStage
from multi_dnn_ros.graph.cut import cut_graph
from multi_dnn_ros.graph.trace import trace
from multi_dnn_ros.planning.timing import Target

_ROUNDS = 15
_CALLS = 20


def launch_cost_s(target: Target, now: Callable[[], float] = time.perf_counter) -> float:
    """Median seconds of host time per call of a job that only applies ReLU to one number.

    On a GPU this is the launch of a captured graph (or a kernel), on a CPU the run of a job with almost no work.
    """
    inputs = (torch.zeros(1),)
    (ready,) = target.make_backend().prepare(cut_graph(trace(nn.ReLU().eval(), inputs), 1), inputs, target.device)
    carried = ready.inputs if isinstance(ready, StaticStage) else tuple(tensor.to(target.device) for tensor in inputs)
    times = []
    with torch.inference_mode():
        for _ in range(_ROUNDS):
            synchronize(target.device)  # launches block once about a thousand are pending
            begin = now()
            for _ in range(_CALLS):
                ready(carried)
            times.append((now() - begin) / _CALLS)
        synchronize(target.device)
    return statistics.median(times)


def synchronize(device: torch.device) -> None:
    """Wait for the work that this thread has launched."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
