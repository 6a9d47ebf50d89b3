"""Plans how each DNN is cut by its layer times: into jobs of equal duration, or into jobs of bounded duration."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import nn

from multi_dnn_ros.backends import StaticStage
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.models.cut import cut_graph
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.models.layers import Layer, node_costs
from multi_dnn_ros.models.trace import trace
from multi_dnn_ros.planning.clock import median_s, synchronize
from multi_dnn_ros.planning.frame_times import HEIGHT, WIDTH
from multi_dnn_ros.planning.graph_plan import (
    LAUNCH_ROUNDS,
    LAUNCHES,
    PREPROCESS_ROUNDS,
    JobPlan,
    bounded_length,
)
from multi_dnn_ros.planning.layer_times import read_layer_times, write_layer_times
from multi_dnn_ros.planning.measure import Times, Traced, measure, trace_for
from multi_dnn_ros.planning.predictor import Predictor
from multi_dnn_ros.planning.timing import Target

log = logging.getLogger(__name__)

#: Number of times that each layer is measured while configuring.
ROUNDS = 7


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
        length = bounded_length(dnn.name, ms, self._bound_s, [layer.module or layer.name for layer in layers], launch_s)
        return JobPlan(length.jobs, costs, None, length.limit_s, launch_s, known, self._bound_s)

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

    def predicted_ms(self, dnn: Dnn, target: Target) -> float | None:
        """Predicted milliseconds of all layers; None: there is no predictor, or it does not know all of them."""
        layers = self._traced(dnn, target).layers(target.dtype)
        found = self._predicted_ms(dnn.name, layers, target)
        return None if found is None else sum(found)

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
    with torch.inference_mode():
        # Between the rounds, because launches block once about a thousand are pending.
        wait = partial(synchronize, target.device)
        found = median_s(lambda: ready(carried), LAUNCH_ROUNDS, LAUNCHES, before=wait)
        wait()
    return found


def _preprocess_ms(dnn: Dnn, device: torch.device) -> float:
    image = torch.zeros((*dnn.view.enlarge_to_min((HEIGHT, WIDTH)), 3), dtype=torch.uint8, device=device)

    def preprocess() -> None:
        dnn.inputs(image)
        synchronize(device)

    with torch.inference_mode():
        preprocess()
        return 1e3 * median_s(preprocess, PREPROCESS_ROUNDS)
