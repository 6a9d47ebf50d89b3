"""Times of a network's jobs and layers, run by the backend that will serve it."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import fx, nn

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.models.cut import GraphStage, NodeCost, cut_graph
from multi_dnn_ros.models.layers import Layer, layers_of
from multi_dnn_ros.models.trace import trace
from multi_dnn_ros.planning.clock import timed_ms
from multi_dnn_ros.planning.timing import Target

ReportProgress = Callable[[int, int], None]
_WARM_UP_ROUNDS = 2
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


def trace_for(module: nn.Module, inputs: tuple[torch.Tensor, ...], target: Target) -> Traced:
    """Trace a copy of a network, on the CPU, as the target runs it. Raises TraceError.

    A backend that has prepared the network may have moved some of its weights to another device.
    """
    return Traced(trace(copy.deepcopy(module).to("cpu"), inputs, fold_batch_norm=True), inputs)


@dataclass(frozen=True)
class Times:
    """Milliseconds per round. stages: the jobs. jobs: [job][round]. layers: [layer][round], in the network's order."""

    stages: tuple[GraphStage, ...]
    jobs: tuple[tuple[float, ...], ...]
    layers: tuple[tuple[float, ...], ...]


class Chain:
    """Prepared copies of stages. Each call runs them on the calling thread's stream: milliseconds of each."""

    def __init__(self, stages: Sequence[GraphStage], inputs: Tensors, target: Target) -> None:
        """inputs: examples of the first stage, on any device. Raises what the backend raises."""
        self._device = target.device
        self._inputs = tuple(tensor.to(target.device) for tensor in inputs)
        with torch.inference_mode():
            self._stages = target.make_backend().prepare(copy.deepcopy(list(stages)), inputs, target.device)

    def __call__(self) -> list[float]:
        carried = self._inputs

        def call(stage: Stage) -> None:
            nonlocal carried
            carried = stage(carried)

        with torch.inference_mode():
            return timed_ms([partial(call, stage) for stage in self._stages], self._device)


class LayerChain:
    """A network with every layer as a stage of its own. Each call: milliseconds of each layer, without the cost of the
    additional stages.
    """

    def __init__(self, traced: Traced, target: Target) -> None:
        graph = traced.graph_module
        (whole,) = cut_graph(graph, 1, costs=lambda node: 1.0)
        layers = cut_graph(graph, max(1, len(whole.layers)), costs=lambda node: 1.0)
        self._chain = Chain(layers, traced.inputs, target)
        self._cost_ms = _stage_cost_ms(target)

    def __call__(self) -> list[float]:
        return [max(0.0, ms - self._cost_ms) for ms in self._chain()]


def measure(
    traced: Traced,
    target: Target,
    *,
    jobs: int,
    costs: NodeCost | None = None,
    progress: ReportProgress = lambda done, total: None,
) -> Times:
    """Run the network `target.rounds` times in `jobs` jobs and as often layer by layer, in turns, so that a disturbance
    affects both.

    costs: of the cut into jobs, see models.cut. Raises what cutting or the backend raises.
    """
    stages = tuple(cut_graph(traced.graph_module, jobs, costs=costs))
    served, layered = Chain(stages, traced.inputs, target), LayerChain(traced, target)
    of_jobs, of_layers = [], []
    for turn in range(-_WARM_UP_ROUNDS, target.rounds):
        progress(max(0, turn), target.rounds)
        jobs_ms, layers_ms = served(), layered()
        if turn >= 0:
            of_jobs.append(jobs_ms)
            of_layers.append(layers_ms)
    progress(target.rounds, target.rounds)
    return Times(stages, tuple(zip(*of_jobs, strict=True)), tuple(zip(*of_layers, strict=True)))


def _stage_cost_ms(target: Target) -> float:
    """Cost of one more stage, from small operations in one stage each and all in one stage."""
    inputs = (torch.zeros(1),)
    small = trace(nn.Sequential(*(nn.ReLU() for _ in range(_COUNT))).eval(), inputs)
    many_ms, one_ms = (
        statistics.median(sum(chain()) for _ in range(_RUNS))
        for chain in (Chain(cut_graph(small, stages), inputs, target) for stages in (_COUNT, 1))
    )
    return max(0.0, (many_ms - one_ms) / (_COUNT - 1))
