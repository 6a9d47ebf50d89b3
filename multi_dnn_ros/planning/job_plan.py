"""Plans how each DNN is cut by its layer times: into jobs of equal duration, or into jobs of bounded duration."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper
from torch import nn

from multi_dnn_ros.backends import StaticStage
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.graph.cut import NodeCost, cut_graph
from multi_dnn_ros.graph.job_length import LAUNCH_SHARE, MAX_JOBS, JobLength, job_length
from multi_dnn_ros.graph.layers import Layer, node_costs
from multi_dnn_ros.graph.trace import trace
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.onnx_cut import OptimizedGraph, node_times_ms
from multi_dnn_ros.models.onnx_network import OnnxNetwork
from multi_dnn_ros.planning.clock import synchronize
from multi_dnn_ros.planning.layer_times import read_layer_times, write_layer_times
from multi_dnn_ros.planning.measure import Times, Traced, measure, trace_for
from multi_dnn_ros.planning.predictor import Predictor
from multi_dnn_ros.planning.timing import Target

log = logging.getLogger(__name__)

#: Number of times that each layer is measured while configuring.
ROUNDS = 7
#: Image size for timing preprocessing: the cameras' sizes are not known yet.
_HEIGHT, _WIDTH = 480, 640
_PREPROCESS_ROUNDS = 5
#: Rounds, and calls per round, by which the cost of a launch is measured.
_LAUNCH_ROUNDS, _LAUNCHES = 15, 20


@dataclass(frozen=True)
class JobPlan:
    """How one DNN is cut.

    jobs: number of jobs. costs, limit_s: arguments of :func:`multi_dnn_ros.graph.cut.cut_module`; without costs, the
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


class JobPlanner:
    """Plans the cuts of the DNNs of a node.

    predictor: predicts layer times; None: layers are measured. source: the predictor's file, for messages. bound_s:
    maximum duration of a job; 0: none, and plan() gets the number of jobs. keep: read measured times from the cache and
    store them there. timed: measure, or a replacement.
    """

    def __init__(
        self, predictor: Predictor | None, source: str, bound_s: float, *, keep: bool = False,
        timed: Callable[..., Times] = measure,
    ) -> None:  # fmt: skip
        self._predictor = predictor
        self._source = source
        self._bound_s = bound_s
        self._keep = keep
        self._timed = timed
        self._logged: set[str] = set()

    def plan(self, dnn: Dnn, jobs: int, target: Target) -> JobPlan:
        """Plan the cut of `dnn`. jobs: number of jobs, used if there is no bound.

        target: device, backend and precision for measuring layers. If the layers cannot be timed, logs a warning and
        returns a plan without times. Raises the error of PyTorch if there is not enough memory.
        """
        if self._predictor is None and not self._bound_s:
            return JobPlan(jobs)
        device = target.device
        try:
            if isinstance(dnn.module, OnnxNetwork):
                return self._plan_graph(dnn, jobs, target)
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                return self._plan(dnn, jobs, target)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            log.warning(
                "dnn.%s: its layers cannot be timed, so it is cut into dnn.%s.jobs jobs by estimated costs: %s",
                dnn.name, dnn.name, summarize_error(error),
            )  # fmt: skip
            return JobPlan(jobs)
        finally:
            if device.type == "cuda":
                torch.cuda.empty_cache()  # frees the memory of graphs captured for timing

    def _plan(self, dnn: Dnn, jobs: int, target: Target) -> JobPlan:
        layers, ms, known = self._layer_ms(dnn, target)
        if not layers:
            return JobPlan(jobs)
        ms[0] += _preprocess_ms(dnn, target.device)
        costs = node_costs(zip(layers, ms, strict=True))
        launch_s = launch_cost_s(target)
        if not self._bound_s:
            return JobPlan(jobs, costs, launch_s=launch_s, known=known)
        length = self._length(dnn, ms, [layer.module or layer.name for layer in layers], launch_s)
        return JobPlan(length.jobs, costs, None, length.limit_s, launch_s, known, self._bound_s)

    def _plan_graph(self, dnn: Dnn, jobs: int, target: Target) -> JobPlan:
        """The plan for an ONNX graph, by the times of its nodes; a predictor's are those of PyTorch's layers, whose sum
        is divided as measured.
        """
        graph = OptimizedGraph(dnn.module.model)
        if not graph.nodes:
            return JobPlan(jobs)
        ms, known = node_times_ms(graph), "measured"
        if self._predictor is not None:
            layers = self._traced(replace(dnn, module=dnn.module.to_torch()), target).layers(target.dtype)
            predicted_ms = self._predicted_ms(dnn.name, layers, target)
            if predicted_ms is not None:
                scale, known = sum(predicted_ms) / (sum(ms) or 1.0), "predicted"
                ms = [scale * own for own in ms]
        ms[0] += _preprocess_ms(dnn, target.device)
        costs, launch_s = tuple(own / 1e3 for own in ms), _session_cost_s()
        if not self._bound_s:
            return JobPlan(jobs, None, costs, launch_s=launch_s, known=known)
        names = [node.name or node.op_type for node in graph.nodes]
        length = self._length(dnn, ms, names, launch_s)
        return JobPlan(length.jobs, None, costs, length.limit_s, launch_s, known, self._bound_s)

    def _length(self, dnn: Dnn, ms: Sequence[float], names: Sequence[str], launch_s: float) -> JobLength:
        length = job_length([layer_ms / 1e3 for layer_ms in ms], self._bound_s, launch_s)
        unmet = _unmet(length, names, ms, launch_s)
        if unmet:
            log.warning("dnn.%s: blocking_ms %g cannot be met: %s", dnn.name, self._bound_s * 1e3, "; ".join(unmet))
        return length

    def _layer_ms(self, dnn: Dnn, target: Target) -> tuple[list[Layer], list[float], str]:
        traced = self._traced(dnn, target)
        layers = traced.layers(target.dtype)
        predicted_ms = self._predicted_ms(dnn.name, layers, target)
        if predicted_ms is not None:
            return layers, predicted_ms, "predicted"
        ms = read_layer_times(dnn.name, traced, target, len(layers)) if self._keep and layers else None
        if ms is None and layers:
            ms = [statistics.median(samples) for samples in self._timed(traced, target, jobs=1).layers]
            if self._keep:
                write_layer_times(dnn.name, traced, target, ms)
        return layers, ms or [], "measured"

    @staticmethod
    def _traced(dnn: Dnn, target: Target) -> Traced:
        generator = torch.Generator().manual_seed(0)
        inputs = tuple(torch.rand(example.shape, generator=generator) for example in dnn.example_inputs())
        return trace_for(dnn.module, inputs, target)

    def _predicted_ms(self, dnn: str, layers: Sequence[Layer], target: Target) -> list[float] | None:
        """Predicted milliseconds of each layer; None: there is no predictor, or it does not know all of them."""
        if self._predictor is None:
            return None
        prediction = self._predictor.predict(layers, target=target)
        if not prediction.unpredicted:
            return list(prediction.ms)
        new = [reason for reason in prediction.unpredicted if reason not in self._logged]
        self._logged.update(new)  # each reason once, for the first DNN to which it applies
        if new:
            log.warning(
                "dnn.%s: layers are measured, because the predictor %s does not cover them: %s", dnn,
                self._source, "; ".join(new),
            )  # fmt: skip
        return None


def launch_cost_s(target: Target) -> float:
    """Median seconds of host time per call of a job that only applies ReLU to one number.

    On a GPU this is the launch of a captured graph (or a kernel), on a CPU the run of a job with almost no work.
    """
    inputs = (torch.zeros(1),)
    (ready,) = target.make_backend().prepare(cut_graph(trace(nn.ReLU().eval(), inputs), 1), inputs, target.device)
    carried = ready.inputs if isinstance(ready, StaticStage) else tuple(tensor.to(target.device) for tensor in inputs)
    times = []
    with torch.inference_mode():
        for _ in range(_LAUNCH_ROUNDS):
            synchronize(target.device)  # launches block once about a thousand are pending
            begin = time.perf_counter()
            for _ in range(_LAUNCHES):
                ready(carried)
            times.append((time.perf_counter() - begin) / _LAUNCHES)
        synchronize(target.device)
    return statistics.median(times)


def _session_cost_s() -> float:
    """As launch_cost_s, for a session of ONNX Runtime."""
    from multi_dnn_ros.backends.onnxruntime_sessions import make_sessions

    given, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [given], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (ready,) = make_sessions(model)
    number = np.zeros(1, np.float32)
    times = []
    for _ in range(_LAUNCH_ROUNDS):
        begin = time.perf_counter()
        for _ in range(_LAUNCHES):
            ready((number,))
        times.append((time.perf_counter() - begin) / _LAUNCHES)
    return statistics.median(times)


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


def _preprocess_ms(dnn: Dnn, device: torch.device) -> float:
    image = torch.zeros((*dnn.view.enlarge_to_min((_HEIGHT, _WIDTH)), 3), dtype=torch.uint8, device=device)
    times = []
    with torch.inference_mode():
        dnn.inputs(image)
        for _ in range(_PREPROCESS_ROUNDS):
            synchronize(device)
            begin = time.perf_counter()
            dnn.inputs(image)
            synchronize(device)
            times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)
