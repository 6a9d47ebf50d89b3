"""Runs a network with time marks, alternately as it is served and layer by layer."""

from __future__ import annotations

import copy
import random
import resource
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import fx, nn

from multi_dnn_ros.backends.fused_activations import fused_operations
from multi_dnn_ros.backends.precision import lay_out_channels_last
from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.graph.cut import GraphStage, NodeCost, cut_graph
from multi_dnn_ros.graph.trace import trace
from multi_dnn_ros.planning.clock import Clock, clock_for
from multi_dnn_ros.planning.marks import MarkedNetwork, jobs_run, layers_run
from multi_dnn_ros.planning.timing import Target

ReportProgress = Callable[[int, int], None]
_WARM_UP_ROUNDS = 2
#: Preempted rounds are repeated, up to this many times the requested number of rounds in all.
_MAX_REPETITION = 4
#: Time limit for a network that has had MIN_ROUNDS.
_LIMIT_S = 20.0
MIN_ROUNDS = 5


@dataclass(frozen=True)
class Traced:
    """A network to measure. inputs: on the CPU, with the batch and precision for which it was traced.

    fused: names of operations that are fused into another one at run time.
    """

    graph_module: fx.GraphModule
    inputs: tuple[torch.Tensor, ...]
    fused: frozenset[str] = frozenset()

    @classmethod
    def on(cls, target: Target, graph_module: fx.GraphModule, inputs: tuple[torch.Tensor, ...]) -> Traced:
        """The network as `target` runs it, which decides what is fused."""
        fuses = target.device.type in BACKENDS.get(target.backend).fuses
        return cls(graph_module, inputs, fused_operations(graph_module) if fuses else frozenset())


@dataclass(frozen=True)
class Times:
    """Milliseconds per round.

    layers: [layer][round], in the network's order. jobs: [job][round]. whole: [round]. disturbed: number of kept rounds
    in which the process was preempted.
    """

    stages: tuple[GraphStage, ...]
    layers: tuple[tuple[float, ...], ...]
    jobs: tuple[tuple[float, ...], ...]
    whole: tuple[float, ...]
    disturbed: int


def trace_for(module: nn.Module, shape: tuple[int, ...], target: Target, seed: int = 0) -> Traced:
    """Trace a copy of `module` as served: the target's batch, precision and memory format, batch norms folded.

    shape: shape of the only input, with the batch axis to be replaced; its values are random. Raises TraceError.
    """
    network = copy.deepcopy(module).to(device="cpu", dtype=target.dtype)
    for part in network.modules():
        part.training = False  # eval() raises for exported programs
    values = torch.rand(target.batch, *shape[1:], generator=torch.Generator().manual_seed(seed))
    inputs: tuple[torch.Tensor, ...] = (values.to(target.dtype),)
    graph_module = trace(network, inputs, fold_batch_norm=True)
    if target.channels_last:
        inputs = lay_out_channels_last(graph_module, inputs)
    return Traced.on(target, graph_module, inputs)


def measure(
    traced: Traced,
    target: Target,
    *,
    jobs: int,
    costs: NodeCost | None = None,
    seed: int = 0,
    hold: Callable[[], AbstractContextManager[None]] = nullcontext,
    make_clock: Callable[[], Clock] | None = None,
    preemptions: Callable[[], int] | None = None,
    now: Callable[[], float] = time.monotonic,
    progress: ReportProgress = lambda done, total: None,
) -> Times:
    """Run the network `target.rounds` times as served, in `jobs` jobs, and as often with its layers marked.

    costs: cost function for the cut. seed: of the random order of each pair of rounds. Rounds in which the operating
    system preempted the process are repeated, within bounds, so that other processes do not affect the medians. hold:
    returns a context manager entered around each round, see realtime_priority. make_clock, preemptions, now:
    replacements for tests. Raises what cutting or the backend raises.
    """
    stages = tuple(cut_graph(traced.graph_module, jobs, costs=costs))
    clocks = make_clock or (lambda: clock_for(target.device))
    switches = preemptions or (_preemptions if target.device.type == "cpu" else lambda: 0)
    order = random.Random(seed)
    with torch.inference_mode():
        inputs = tuple(tensor.to(target.device) for tensor in traced.inputs)
        served = jobs_run(stages, inputs, target, clocks())
        layered = layers_run(traced.graph_module, stages, inputs, target, clocks())
        for _ in range(_WARM_UP_ROUNDS):
            served()
            layered()
        rounds: dict[MarkedNetwork, list[tuple[int, list[list[float]]]]] = {served: [], layered: []}
        undisturbed = {served: 0, layered: 0}
        begin = now()
        for turn in range(target.rounds * _MAX_REPETITION):
            late = turn >= min(MIN_ROUNDS, target.rounds) and now() - begin > _LIMIT_S
            if late or min(undisturbed.values()) >= target.rounds:
                break
            for run in order.sample([served, layered], 2):
                with hold():
                    before = switches()
                    times = run()
                    disturbance = switches() - before
                rounds[run].append((disturbance, times))
                undisturbed[run] += disturbance == 0
            progress(min(min(undisturbed.values()), target.rounds), target.rounds)
    of_jobs, of_layers = (_least_preempted(rounds[run], target.rounds) for run in (served, layered))
    return Times(
        stages=stages,
        layers=_columns([[ms for job in times for ms in job] for _, times in of_layers]),
        jobs=_columns([[ms for (ms,) in times] for _, times in of_jobs]),
        whole=tuple(sum(ms for (ms,) in times) for _, times in of_jobs),
        disturbed=sum(disturbance > 0 for disturbance, _ in (*of_jobs, *of_layers)),
    )


def _least_preempted(rounds: list[tuple[int, list[list[float]]]], count: int) -> list[tuple[int, list[list[float]]]]:
    return sorted(rounds, key=lambda entry: entry[0])[:count]


def _columns(rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(zip(*rows, strict=True))


def _preemptions() -> int:
    """Involuntary context switches of this process since its start."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
