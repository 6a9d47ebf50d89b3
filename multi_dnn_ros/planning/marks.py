"""Time marks inside a running network, which time each layer with its real data and caches."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import fx, nn

from multi_dnn_ros.backends import Stage, Tensors, run_stages
from multi_dnn_ros.backends.precision import lay_out_channels_last
from multi_dnn_ros.backends.registry import BACKENDS
from multi_dnn_ros.graph.cut import GraphStage, cut_graph
from multi_dnn_ros.graph.trace import trace
from multi_dnn_ros.planning.clock import Clock
from multi_dnn_ros.planning.timing import Target

#: Number of marks or layers, and of runs, by which the cost of a mark or of a stage call is measured.
_COUNT = 16
_RUNS = 25


class MarkedStage(nn.Module):
    """A stage with len(layers) + 1 marks: mark `first` before its first layer and one after each layer.

    marks_after: numbers of operations after which marks are taken instead; -1: at the end.
    """

    def __init__(self, stage: GraphStage, clock: Clock, first: int, marks_after: Sequence[int] | None = None) -> None:
        super().__init__()
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        ends = _ends(stage) if marks_after is None else list(marks_after)
        computed = 0
        index = first

        def mark() -> None:
            nonlocal index
            graph.call_function(clock.mark, (index,))
            index += 1

        marked_start = False
        for node in stage.graph.graph.nodes:
            if node.op != "placeholder" and not marked_start:
                mark()
                marked_start = True
            copies[node] = graph.node_copy(node, copies.__getitem__) if node.op != "output" else node
            if node.op == "output":
                while ends:  # layers without operations: these gaps measure the cost of a mark
                    ends.pop()
                    mark()
                graph.output(fx.node.map_arg(node.args[0], copies.__getitem__))
            elif node.op not in ("placeholder", "get_attr"):
                computed += 1
                while ends and ends[0] == computed:
                    ends.pop(0)
                    mark()
        self.graph = fx.GraphModule(stage.graph, graph, class_name="MarkedGraph")

    def forward(self, carried: Tensors) -> Tensors:
        outputs: Tensors = self.graph(*carried)
        return outputs


class MarkedNetwork:
    """A prepared network with time marks; each call returns the milliseconds of its parts.

    parts: number of timed parts per stage. cost_ms: cost of a mark (of a stage call if each part is a stage), which is
    subtracted from each time. inside: whether the stages take the marks themselves.
    """

    def __init__(
        self, stages: Sequence[Stage], inputs: Tensors, clock: Clock, parts: Sequence[int], cost_ms: float, inside: bool
    ) -> None:
        self._stages = stages
        self._inputs = inputs
        self._clock = clock
        self._parts = parts
        self._cost_ms = cost_ms
        self._inside = inside

    def __call__(self) -> list[list[float]]:
        """Milliseconds of each part of each stage."""
        if self._inside:
            run_stages(self._stages, self._inputs)
        else:
            carried = self._inputs
            self._clock.mark(0)
            for index, stage in enumerate(self._stages, start=1):
                carried = stage(carried)
                self._clock.mark(index)
        gaps = iter(max(0.0, gap - self._cost_ms) for gap in self._clock.gaps_ms())
        times: list[list[float]] = []
        for index, parts in enumerate(self._parts):
            if self._inside and index:
                next(gaps)  # the gap between two stages
            times.append([next(gaps) for _ in range(parts)])
        return times


def jobs_run(stages: Sequence[GraphStage], inputs: Tensors, target: Target, clock: Clock) -> MarkedNetwork:
    """The network as it is served, with marks only between the jobs."""
    ready = target.make_backend().prepare(stages, inputs, target.device)
    clock.prepare(len(ready) + 1)
    return MarkedNetwork(ready, inputs, clock, [1] * len(ready), 0.0, inside=False)


def layers_run(
    graph_module: fx.GraphModule, stages: Sequence[GraphStage], inputs: Tensors, target: Target, clock: Clock
) -> MarkedNetwork:
    """The network with marks around each layer of the jobs `stages`.

    If the backend compiles the graph of a stage, no marks can be inside it, so each layer is a stage.
    """
    layers = [len(stage.layers) for stage in stages]
    if BACKENDS.get(target.backend).timing_marks:  # false for backends that compile a stage's graph
        cost_ms = _mark_cost_ms(target, clock)
        clock.prepare(sum(layers) + len(layers))
        first = 0
        marked = []
        for stage, count in zip(stages, layers, strict=True):
            marked.append(MarkedStage(stage, clock, first))
            first += count + 1
        ready = target.make_backend().prepare(marked, inputs, target.device)
        return MarkedNetwork(ready, inputs, clock, layers, cost_ms, inside=True)
    cost_ms = _call_cost_ms(target, clock)
    single_layers = cut_graph(graph_module, sum(layers))
    ready = target.make_backend().prepare(single_layers, inputs, target.device)
    clock.prepare(len(ready) + 1)
    return MarkedNetwork(ready, inputs, clock, layers, cost_ms, inside=False)


def _ends(stage: GraphStage) -> list[int]:
    """For each layer, the number of operations up to its end."""
    ends, count = [], 0
    for layer in stage.layers:
        count += len(layer)
        ends.append(count)
    return ends


def _empty(target: Target) -> tuple[GraphStage, Tensors]:
    """A job without layers: its time is the cost of a call."""
    inputs = (torch.zeros(1, device=target.device),)
    (stage,) = cut_graph(trace(nn.Identity().eval(), (torch.zeros(1),)), 1)
    return stage, inputs


def _mark_cost_ms(target: Target, clock: Clock) -> float:
    if target.device.type == "cuda":
        return _mark_between_kernels_ms(target, clock)
    stage, inputs = _empty(target)
    clock.prepare(_COUNT + 1)
    marked = MarkedStage(stage, clock, 0, marks_after=[-1] * _COUNT)
    ready = target.make_backend().prepare([marked], inputs, target.device)
    return _median_gap_ms(MarkedNetwork(ready, inputs, clock, [_COUNT], 0.0, inside=True))


def _mark_between_kernels_ms(target: Target, clock: Clock) -> float:
    """Cost of a mark between kernels, from the time of typical layers with and without marks between them.

    On a GPU this exceeds the gap between two marks: without a mark, a kernel starts while the previous one ends. The
    layers are chosen so that they stay separate kernels.
    """
    layers = [
        nn.Conv2d(64, 64, 3, padding=1, bias=False) if index % 2 == 0 else nn.LeakyReLU() for index in range(_COUNT)
    ]
    values: Tensors = (torch.zeros(1, 64, 28, 28, dtype=target.dtype),)
    graph_module = trace(nn.Sequential(*layers).to(target.dtype).eval(), values)
    if target.channels_last:
        values = lay_out_channels_last(graph_module, values)
    (stage,) = cut_graph(graph_module, 1)
    inputs = tuple(tensor.to(target.device) for tensor in values)
    clock.prepare(_COUNT + 1)
    marked = target.make_backend().prepare([MarkedStage(stage, clock, 0)], inputs, target.device)
    run = MarkedNetwork(marked, inputs, clock, [_COUNT], 0.0, inside=True)
    with_marks = statistics.median(sum(run()[0]) for _ in range(_RUNS))
    clock.prepare(2)
    run = MarkedNetwork(
        target.make_backend().prepare([stage], inputs, target.device), inputs, clock, [1], 0.0, inside=False
    )
    without = statistics.median(run()[0][0] for _ in range(_RUNS))
    return max(0.0, (with_marks - without) / _COUNT)


def _call_cost_ms(target: Target, clock: Clock) -> float:
    """Cost of one more stage, from the time of small operations in one stage each and all in one stage."""
    inputs = (torch.zeros(1, device=target.device),)
    small = trace(nn.Sequential(*(nn.ReLU() for _ in range(_COUNT))).eval(), (torch.zeros(1),))
    times = []
    for stages in (_COUNT, 1):
        ready = target.make_backend().prepare(cut_graph(small, stages), inputs, target.device)
        clock.prepare(stages + 1)
        run = MarkedNetwork(ready, inputs, clock, [1] * stages, 0.0, inside=False)
        times.append(statistics.median(sum(gap for (gap,) in run()) for _ in range(_RUNS)))
    return max(0.0, (times[0] - times[1]) / (_COUNT - 1))


def _median_gap_ms(run: MarkedNetwork) -> float:
    gaps = sorted(gap for _ in range(_RUNS) for part in run() for gap in part)
    return gaps[len(gaps) // 2]
