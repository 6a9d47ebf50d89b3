"""Plans how each DNN is cut by its layer times: into jobs of equal duration, or into jobs of bounded duration."""

from __future__ import annotations

import copy
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.graph.cut import GraphStage, NodeCost
from multi_dnn_ros.graph.job_length import LAUNCH_SHARE, MAX_JOBS, JobLength, job_length
from multi_dnn_ros.graph.stream_plan import time_saved_s
from multi_dnn_ros.graph.trace import trace
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.planning.launch_cost import launch_cost_s, synchronize
from multi_dnn_ros.planning.layer_times import read_layer_times, write_layer_times
from multi_dnn_ros.planning.measure import Times, Traced, measure
from multi_dnn_ros.planning.predictor import Predictor, layers_of
from multi_dnn_ros.planning.profile import LayerShape, describe, node_costs
from multi_dnn_ros.planning.timing import Target

log = logging.getLogger(__name__)

#: Number of times that each layer is measured while configuring.
ROUNDS = 7
#: Image size for timing preprocessing: the cameras' sizes are not known yet.
_HEIGHT, _WIDTH = 480, 640
_PREPROCESS_ROUNDS = 5
_MAX_LOGGED_REASONS = 3


@dataclass(frozen=True)
class JobPlan:
    """How one DNN is cut.

    jobs: number of jobs. costs, limit_s: arguments of :func:`multi_dnn_ros.graph.cut.cut_module`; without costs, the
    times are unknown and cut_module uses its own estimates. The first layer's cost includes preprocessing, which runs
    in the first job. launch_s: launch cost per job. known: source of the times, "predicted" or "measured". bound_s:
    maximum duration of a job; None: no maximum.
    """

    jobs: int
    costs: NodeCost | None = None
    limit_s: float = float("inf")
    launch_s: float = 0.0
    known: str = ""
    bound_s: float | None = None

    def remaining_ns(self, jobs: Sequence[GraphStage], streams: Sequence[int] = ()) -> tuple[int, ...] | None:
        """For each job, the time from its start to the end of the last job while nothing else runs; None: unknown.

        streams: for each job, the number of streams on which its branches run at the same time; empty: one for each.
        """
        if self.costs is None:
            return None
        counts = streams or (1,) * len(jobs)
        saved_s = [time_saved_s(job.graph, self.costs, count) for job, count in zip(jobs, counts, strict=True)]
        times = [round((job.cost_s - saved + self.launch_s) * 1e9) for job, saved in zip(jobs, saved_s, strict=True)]
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
    store them there. timed, launch: replacements for tests.
    """

    def __init__(
        self,
        predictor: Predictor | None,
        source: str,
        bound_s: float,
        *,
        keep: bool = False,
        timed: Callable[..., Times] = measure,
        launch: Callable[[Target], float] = launch_cost_s,
    ) -> None:
        self._predictor = predictor
        self._source = source
        self._bound_s = bound_s
        self._keep = keep
        self._timed = timed
        self._launch = launch
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
        generator = torch.Generator().manual_seed(0)
        inputs = tuple(torch.rand(example.shape, generator=generator) for example in dnn.example_inputs())
        traced = Traced.on(target, trace(dnn.module, inputs, fold_batch_norm=True), inputs)
        make = target.make_backend
        target = replace(target, make_backend=lambda: _OnCopies(make()))
        layers, ms, known = self._layer_ms(dnn, traced, target)
        if not layers:
            return JobPlan(jobs)
        ms[0] += _preprocess_ms(dnn, target.device)
        costs = node_costs(zip(layers, ms, strict=True), f"the plan of {dnn.name}")
        launch_s = self._launch(target)
        if not self._bound_s:
            return JobPlan(jobs, costs, launch_s=launch_s, known=known)
        length = job_length([layer_ms / 1e3 for layer_ms in ms], self._bound_s, launch_s)
        unmet = _unmet(length, layers, ms, launch_s)
        if unmet:
            log.warning("dnn.%s: blocking_ms %g cannot be met: %s", dnn.name, self._bound_s * 1e3, "; ".join(unmet))
        return JobPlan(length.jobs, costs, length.limit_s, launch_s, known, self._bound_s)

    def _layer_ms(self, dnn: Dnn, traced: Traced, target: Target) -> tuple[list[LayerShape], list[float], str]:
        if self._predictor is not None:
            layers = layers_of(traced)
            prediction = self._predictor.predict(in_precision(layers, target.dtype), target=target)
            if not prediction.unpredicted:
                return layers, list(prediction.ms), "predicted"
            self._log_unpredicted(dnn.name, prediction.unpredicted)
        if self._keep and (known := read_layer_times(dnn.name, traced, target)) is not None:
            return *known, "measured"
        times = self._timed(traced, target, jobs=1)
        layers = describe(traced, [layer for stage in times.stages for layer in stage.layers])
        medians = [statistics.median(ms) for ms in times.layers]
        if self._keep:
            write_layer_times(dnn.name, traced, target, layers, medians)
        return layers, medians, "measured"

    def _log_unpredicted(self, dnn: str, reasons: Sequence[str]) -> None:
        """Log each reason once, for the first DNN to which it applies."""
        new = [reason for reason in reasons if reason not in self._logged]
        self._logged.update(new)
        if new:
            more = f"; and {len(new) - _MAX_LOGGED_REASONS} more" if len(new) > _MAX_LOGGED_REASONS else ""
            log.warning(
                "dnn.%s: layers are measured, because the predictor %s does not cover them: %s%s",
                dnn, self._source, "; ".join(new[:_MAX_LOGGED_REASONS]), more,
            )  # fmt: skip


def in_precision(layers: Sequence[LayerShape], dtype: torch.dtype) -> list[LayerShape]:
    """Layers that were traced in float32, with their memory traffic converted to that of `dtype`."""
    ratio = dtype.itemsize / torch.float32.itemsize
    return [
        layer.model_copy(
            update={
                "work": layer.work.model_copy(
                    update={
                        "bytes_read": round(layer.work.bytes_read * ratio),
                        "bytes_written": round(layer.work.bytes_written * ratio),
                    }
                )
            }
        )
        for layer in layers
    ]


class _OnCopies:
    """A backend that prepares copies of the stages, because the originals are cut and prepared again after timing."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def prepare(
        self, stages: Sequence[nn.Module], inputs: Tensors, device: torch.device, shared: Shared | None = None
    ) -> tuple[Stage, ...]:
        copies: Any = copy.deepcopy(list(stages))
        return self._backend.prepare(copies, inputs, device, shared)


def _unmet(length: JobLength, layers: Sequence[LayerShape], ms: Sequence[float], launch_s: float) -> list[str]:
    """For each constraint (bound, launch cost) that cannot be met, the reason and what is done instead."""
    found = []
    if length.too_long:
        worst = max(length.too_long, key=lambda number: ms[number])
        others = f" (and {len(length.too_long) - 1} more layers)" if len(length.too_long) > 1 else ""
        name = (layers[worst].module or layers[worst].name) + (", with preprocessing," if not worst else "")
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
