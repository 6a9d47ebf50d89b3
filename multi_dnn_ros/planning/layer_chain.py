"""Times of a network's stages and layers, run by the backend that will serve it."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import fx, nn

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.models.cut import GraphStage, cut_graph
from multi_dnn_ros.models.layers import Layer, layers_of
from multi_dnn_ros.models.trace import trace
from multi_dnn_ros.planning.clock import timed_ms
from multi_dnn_ros.planning.timing import Target

#: One run: milliseconds of each stage or layer.
Run = Callable[[], list[float]]
#: Stages and runs by which the cost of one more stage is measured.
_COUNT, _RUNS = 16, 25


@dataclass(frozen=True)
class Traced:
    """A network in float32 with its batch norms folded. inputs: examples, on the CPU."""

    graph_module: fx.GraphModule
    inputs: tuple[torch.Tensor, ...]

    def layers(self, dtype: torch.dtype = torch.float32) -> list[Layer]:
        """Its layers. dtype: in which they compute."""
        return layers_of(self.graph_module, dtype)


def trace_on_cpu(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Traced:
    """Trace a copy of a network, on the CPU. Raises TraceError.

    A backend that has prepared the network may have moved some of its weights to another device.
    """
    return Traced(trace(copy.deepcopy(module).to("cpu"), inputs, fold_batch_norm=True), inputs)


def make_chain(stages: Sequence[GraphStage], inputs: Tensors, target: Target) -> Run:
    """Prepares copies of stages. Each call runs them on the calling thread's stream.

    inputs: examples of the first stage, on any device. Raises what the backend raises.
    """
    given = tuple(tensor.to(target.device) for tensor in inputs)
    with torch.inference_mode():
        ready = target.make_backend().prepare(copy.deepcopy(list(stages)), inputs, target.device)

    def run() -> list[float]:
        carried = given

        def call(stage: Stage) -> None:
            nonlocal carried
            carried = stage(carried)

        with torch.inference_mode():
            return timed_ms([partial(call, stage) for stage in ready], target.device)

    return run


def make_layer_chain(traced: Traced, target: Target) -> Run:
    """Prepares a network with every layer as a stage of its own. Each call returns the milliseconds of each layer,
    without the cost of the additional stages.
    """
    graph = traced.graph_module
    (whole,) = cut_graph(graph, 1, costs=lambda node: 1.0)
    run = make_chain(cut_graph(graph, max(1, len(whole.layers)), costs=lambda node: 1.0), traced.inputs, target)
    cost_ms = _stage_cost_ms(target)
    return lambda: [max(0.0, ms - cost_ms) for ms in run()]


def _stage_cost_ms(target: Target) -> float:
    """Cost of one more stage, from small operations in one stage each and all in one stage."""
    inputs = (torch.zeros(1),)
    small = trace(nn.Sequential(*(nn.ReLU() for _ in range(_COUNT))).eval(), inputs)
    many_ms, one_ms = (
        statistics.median(sum(run()) for _ in range(_RUNS))
        for run in (make_chain(cut_graph(small, stages), inputs, target) for stages in (_COUNT, 1))
    )
    return max(0.0, (many_ms - one_ms) / (_COUNT - 1))
