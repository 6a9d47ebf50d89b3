"""How a DNN is cut into jobs: a number of jobs, or jobs of bounded duration by the times of layers or ONNX nodes.

Imports no PyTorch; :mod:`multi_dnn_ros.planning.layer_plan` has the part for PyTorch modules.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.onnx_cut import OptimizedGraph, node_times_ms
from multi_dnn_ros.models.partition import fewest_runs
from multi_dnn_ros.planning.frame_times import HEIGHT, WIDTH

if TYPE_CHECKING:
    from multi_dnn_ros.models.cut import NodeCost

log = logging.getLogger(__name__)

#: Maximum number of jobs, as of parameter `dnn.<dnn>.jobs`.
MAX_JOBS = 256
_PREPROCESS_ROUNDS = 5


@dataclass(frozen=True)
class JobPlan:
    """How one DNN is cut.

    jobs: number of jobs. costs, limit_s: arguments of :func:`multi_dnn_ros.models.cut.cut_module`; without costs, the
    times are unknown and cut_module uses its own estimates. The first layer's cost includes preprocessing, which on a
    CPU runs in the first job. node_costs_s: for a DNN that is an ONNX graph, instead of costs, seconds of each node of
    the optimized graph. limit_s: maximum duration of a job, if it has several layers.
    """

    jobs: int
    costs: NodeCost | None = None
    node_costs_s: tuple[float, ...] | None = None
    limit_s: float = float("inf")

    def remaining_ns(self, jobs: Sequence[Any]) -> tuple[int, ...] | None:
        """For each job, the time from its start to the end of the last job while nothing else runs; None: unknown.

        jobs: with the attribute `cost_s`, seconds.
        """
        if self.costs is None and self.node_costs_s is None:
            return None
        return tuple(accumulate(round(job.cost_s * 1e9) for job in reversed(jobs)))[::-1]

    def summary(self, dnn: str, remaining_ns: Sequence[int]) -> str:
        """One line for the log: number of jobs, longest job."""
        times_ms = [(before - after) / 1e6 for before, after in pairwise((*remaining_ns, 0))]
        count = f"{len(times_ms)} job{'s' if len(times_ms) > 1 else ''}"
        return f"{dnn}: {count}, longest {max(times_ms):.3g} ms of {self.limit_s * 1e3:g} allowed"


def plan_graph(dnn: Dnn, jobs: int, bound_s: float) -> JobPlan:
    """Plan the cut of a DNN whose module is an OnnxNetwork.

    jobs: number of jobs, used if there is no bound. bound_s: maximum duration of a job; 0: none.
    """
    graph = OptimizedGraph(dnn.module.model) if bound_s else None
    if graph is None or not graph.nodes:
        return JobPlan(jobs)
    ms = node_times_ms(graph)
    image = np.zeros((*dnn.view.enlarge_to_min((HEIGHT, WIDTH)), 3), np.uint8)
    ms[0] += preprocess_ms(lambda: dnn.array_inputs(image))
    names = [node.name or node.op_type for node in graph.nodes]
    costs_s = tuple(own / 1e3 for own in ms)
    return JobPlan(fewest_jobs(dnn.name, costs_s, names, bound_s), None, costs_s, bound_s)


def preprocess_ms(preprocess: Callable[[], object]) -> float:
    """Median of several calls."""
    times = []
    for _ in range(1 + _PREPROCESS_ROUNDS):
        begin = time.perf_counter()
        preprocess()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times[1:])


def fewest_jobs(dnn: str, layers_s: Sequence[float], names: Sequence[str], bound_s: float) -> int:
    """The minimum number of jobs, at most MAX_JOBS, of which none takes longer than `bound_s` seconds.

    A layer that exceeds the bound by itself is a job of its own. A bound that cannot be met is logged. names: of the
    layers.
    """
    wanted = fewest_runs(layers_s, bound_s)
    worst_s, name = max(zip(layers_s, names, strict=True))
    if worst_s > bound_s:
        others = sum(own_s > bound_s for own_s in layers_s) - 1
        log.warning(
            "dnn.%s: blocking_ms %g cannot be met: layer %s takes %.3g ms by itself%s and is kept as one job", dnn,
            bound_s * 1e3, name, worst_s * 1e3, f" (and {others} more layers)" if others else "",
        )  # fmt: skip
    if wanted > MAX_JOBS:
        log.warning(
            "dnn.%s: blocking_ms %g cannot be met: it needs %d jobs; %d are used", dnn, bound_s * 1e3, wanted, MAX_JOBS
        )
    return min(wanted, MAX_JOBS)
