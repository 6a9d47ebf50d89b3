"""Plans how a DNN is cut into jobs: its number of jobs and their costs. For ONNX graphs by the times of their nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, helper

from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.onnx_cut import OptimizedGraph, node_times_ms
from multi_dnn_ros.planning.clock import median_s
from multi_dnn_ros.planning.frame_times import HEIGHT, WIDTH
from multi_dnn_ros.planning.job_length import LAUNCH_SHARE, MAX_JOBS, JobLength, job_length

if TYPE_CHECKING:
    from multi_dnn_ros.models.cut import NodeCost

log = logging.getLogger(__name__)

#: How often preprocessing is timed.
PREPROCESS_ROUNDS = 5
#: Rounds, and calls per round, by which the cost of a launch is measured.
LAUNCH_ROUNDS, LAUNCHES = 15, 20


@dataclass(frozen=True)
class JobPlan:
    """How one DNN is cut.

    jobs: number of jobs. costs, limit_s: arguments of :func:`multi_dnn_ros.models.cut.cut_module`; without costs, the
    times are unknown and cut_module uses its own estimates. The first layer's cost includes preprocessing, which runs
    in the first job. node_costs_s: for a DNN that is an ONNX graph, instead of costs, seconds of each node of the
    optimized graph. launch_s: launch cost per job. known: source of the times, "predicted" or "measured". bound_s:
    maximum duration of a job; None: no maximum.
    """

    jobs: int
    costs: NodeCost | None = None
    node_costs_s: tuple[float, ...] | None = None
    limit_s: float = float("inf")
    launch_s: float = 0.0
    known: str = ""
    bound_s: float | None = None

    def remaining_ns(self, jobs: Sequence[Any]) -> tuple[int, ...] | None:
        """For each job, the time from its start to the end of the last job while nothing else runs; None: unknown.

        jobs: with the attribute `cost_s`, seconds.
        """
        if self.costs is None and self.node_costs_s is None:
            return None
        times = [round((job.cost_s + self.launch_s) * 1e9) for job in jobs]
        return tuple(accumulate(reversed(times)))[::-1]

    def summary(self, dnn: str, remaining_ns: Sequence[int]) -> str:
        """One line for the log: number of jobs, longest job, launch cost."""
        times_ms = [(before - after) / 1e6 for before, after in pairwise((*remaining_ns, 0))]
        count = f"{len(times_ms)} job{'s' if len(times_ms) > 1 else ''}"
        allowed = "" if self.bound_s is None else f" of {self.bound_s * 1e3:g} allowed"
        share = self.launch_s * 1e3 * len(times_ms) / sum(times_ms) if self.launch_s else 0.0
        longest = f"longest {max(times_ms):.3g} ms{allowed}"
        return f"{dnn}: {count}, {longest}, launch cost {100 * share:.1f} %, by {self.known} layer times"


def plan_graph(dnn: Dnn, jobs: int, bound_s: float, predicted_ms: Callable[[], float | None] | None = None) -> JobPlan:
    """Plan the cut of a DNN whose module is an OnnxNetwork.

    jobs: number of jobs, used if there is no bound. bound_s: maximum duration of a job; 0: none. predicted_ms: returns
    the predicted time of the whole DNN, which is divided among the nodes as measured; None: there is no predictor.
    """
    if predicted_ms is None and not bound_s:
        return JobPlan(jobs)
    graph = OptimizedGraph(dnn.module.model)
    if not graph.nodes:
        return JobPlan(jobs)
    ms, known = node_times_ms(graph), "measured"
    predicted = None if predicted_ms is None else predicted_ms()
    if predicted is not None:
        scale, known = predicted / (sum(ms) or 1.0), "predicted"
        ms = [scale * own for own in ms]
    ms[0] += _preprocess_ms(dnn)
    costs, launch_s = tuple(own / 1e3 for own in ms), _session_cost_s()
    if not bound_s:
        return JobPlan(jobs, None, costs, launch_s=launch_s, known=known)
    length = bounded_length(dnn.name, ms, bound_s, [node.name or node.op_type for node in graph.nodes], launch_s)
    return JobPlan(length.jobs, None, costs, length.limit_s, launch_s, known, bound_s)


def bounded_length(dnn: str, ms: Sequence[float], bound_s: float, names: Sequence[str], launch_s: float) -> JobLength:
    """The jobs for layers of these milliseconds; a bound that cannot be met is logged. names: of the layers."""
    length = job_length([layer_ms / 1e3 for layer_ms in ms], bound_s, launch_s)
    unmet = _unmet(length, names, ms, launch_s)
    if unmet:
        log.warning("dnn.%s: blocking_ms %g cannot be met: %s", dnn, bound_s * 1e3, "; ".join(unmet))
    return length


def _session_cost_s() -> float:
    """As launch_cost_s, for a session of ONNX Runtime."""
    from multi_dnn_ros.backends.onnxruntime_sessions import make_sessions

    given, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [given], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (ready,) = make_sessions(model)
    number = np.zeros(1, np.float32)
    return median_s(lambda: ready((number,)), LAUNCH_ROUNDS, LAUNCHES)


def _unmet(length: JobLength, names: Sequence[str], ms: Sequence[float], launch_s: float) -> list[str]:
    """For each constraint (bound, launch cost) that cannot be met, the reason and what is done instead."""
    found = []
    if length.too_long:
        worst = max(length.too_long, key=lambda number: ms[number])
        others = f" (and {len(length.too_long) - 1} more layers)" if len(length.too_long) > 1 else ""
        name = names[worst] + (", with preprocessing," if not worst else "")
        took_ms = ms[worst] + launch_s * 1e3
        found.append(f"layer {name} takes {took_ms:.3g} ms by itself{others} and is kept as one job")
    if length.capped:
        found.append(f"more than {MAX_JOBS} jobs would be needed; {MAX_JOBS} are used")
    if not length.launch_pays:
        found.append(
            f"launching {length.jobs} jobs takes {100 * length.launch_share:.1f} % of their time, more than "
            f"{100 * LAUNCH_SHARE:g} %, because the bound has precedence"
        )
    return found


def _preprocess_ms(dnn: Dnn) -> float:
    image = np.zeros((*dnn.view.enlarge_to_min((HEIGHT, WIDTH)), 3), np.uint8)
    dnn.array_inputs(image)
    return 1e3 * median_s(lambda: dnn.array_inputs(image), PREPROCESS_ROUNDS)
