"""What it costs to launch a job: the host's time, whatever the job computes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from multi_dnn_ros.backends.cuda_graph import Captured
from multi_dnn_ros.graph.cut import split
from multi_dnn_ros.graph.trace import trace
from multi_dnn_ros.planning.timing import Target

_ROUNDS = 15
_CALLS = 20


def launch_cost_s(target: Target, now: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that one call of a job takes on the host, median of rounds; the job adds nothing to one number.

    On a GPU that is launching a captured graph (or a kernel), on a CPU running a job with next to nothing to compute.
    """
    inputs = (torch.zeros(1),)
    (ready,) = target.make_backend().prepare(split(trace(nn.ReLU().eval(), inputs), 1), inputs, target.device)
    carried = ready.inputs if isinstance(ready, Captured) else tuple(tensor.to(target.device) for tensor in inputs)
    times = []
    with torch.inference_mode():
        for _ in range(_ROUNDS):
            synchronize(target.device)  # a launch waits once the GPU has a thousand of them
            begin = now()
            for _ in range(_CALLS):
                ready(carried)
            times.append((now() - begin) / _CALLS)
        synchronize(target.device)
    return statistics.median(times)


def synchronize(device: torch.device) -> None:
    """Wait for what this thread launched."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
