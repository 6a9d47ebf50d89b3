"""Stages whose branches run on several streams as segments, which a compiler turns into few kernels each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import fx, nn

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.agreement import noise_like
from multi_dnn_ros.backends.branched_graph import BranchedGraph, BranchStreams, only_graph, with_graph
from multi_dnn_ros.backends.eager_fallback import compiled_or_eager
from multi_dnn_ros.graph.branches import device_operations
from multi_dnn_ros.graph.segments import fused_s, segment_name, split_into_segments
from multi_dnn_ros.graph.stream_plan import plan_streams


@dataclass(frozen=True)
class SegmentedStage:
    """A stage as segments. parallel: with its segments on several streams. serial: with all on the current stream.

    graph: calls the segments, in both; see split_into_segments. count: number of segments.
    """

    parallel: nn.Module
    serial: nn.Module
    graph: fx.GraphModule
    count: int


def segmented(
    stage: nn.Module, streams: int, make_streams: Callable[[int], BranchStreams], *, fuses: bool
) -> SegmentedStage | None:
    """Copies of the stage with its branches as segments on at most `streams` streams; they share the stage's tensors.

    make_streams: called with the number of streams that are used. fuses: plan for segments that will be compiled;
    nothing is compiled yet. Returns None if no branch is worth a second stream. Raises SerialGraphError if the
    operations of the stage must run in order or are unknown.
    """
    graph_module = only_graph(stage)
    cost = partial(fused_s, graph_module) if fuses else None
    plan = plan_streams(device_operations(graph_module, cost), streams)
    if plan.streams == 1:
        return None
    graph, plan = split_into_segments(graph_module, plan)
    parallel = BranchedGraph(graph, plan, make_streams(plan.streams))
    return SegmentedStage(
        with_graph(stage, graph_module, parallel), with_graph(stage, graph_module, graph), graph, len(plan.steps)
    )


class SegmentCompiler:
    """Compiles the segments of stages, each for the memory layouts of its inputs.

    compile_segment: returns a compiled function for a segment and example inputs; raises an exception for a segment
    that cannot be compiled or then has other results. progress: called with a line for each segment.
    """

    def __init__(self, compile_segment: Callable[[Stage, Tensors], Stage], progress: Callable[[str], None]) -> None:
        self._compile_segment = compile_segment
        self._progress = progress

    def compile(self, title: str, stage: SegmentedStage, inputs: Tensors) -> None:
        """Replace the segments of the stage by compiled ones; a segment that cannot be compiled stays as it is.

        title: names the stage in messages. inputs: examples, on the device. Everything runs on the current stream.
        Raises an exception if the memory does not suffice.
        """
        begin = time.perf_counter()
        for index in range(stage.count):
            segment = stage.graph.get_submodule(segment_name(index))
            compile_one = partial(self._compile_one, title, stage, index, segment, begin)
            stage.graph.add_module(segment_name(index), _ReplacedWhenCalled(compile_one))
        # A run compiles each segment for the layouts in which the compiled segments before it leave their results. Not
        # in inference mode, whose tensors cannot be traced.
        with torch.inference_mode(False), torch.no_grad():
            stage.serial(tuple(tensor.clone() for tensor in noise_like(inputs)))
        taken_s = time.perf_counter() - begin
        self._progress(f"compiled {stage.count} segments of {title} after {taken_s:.1f} s")

    def _compile_one(
        self, title: str, stage: SegmentedStage, index: int, segment: nn.Module, begin: float, inputs: Tensors
    ) -> nn.Module:
        name = f"segment {index + 1} of {stage.count} of {title}"
        mean_s = (time.perf_counter() - begin) / index if index else 0.0
        self._progress(f"compiling {name}" + (f", about {max(1.0, mean_s):.0f} s" if index else ""))

        def compile_segment() -> nn.Module:
            return _Function(self._compile_segment(lambda tensors: segment(*tensors), inputs))

        ready = compiled_or_eager(name, "Inductor", compile_segment, segment)
        stage.graph.add_module(segment_name(index), ready)
        return ready


class _Function(nn.Module):
    """A compiled segment in the place of its graph."""

    def __init__(self, function: Stage) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        return self._function(tensors)


class _ReplacedWhenCalled(nn.Module):
    """Stands for a segment until its first call. replace: returns its replacement for the inputs of this call."""

    def __init__(self, replace: Callable[[Tensors], nn.Module]) -> None:
        super().__init__()
        self._replace = replace

    def forward(self, *tensors: torch.Tensor) -> Tensors:
        results: Tensors = self._replace(tensors)(*tensors)
        return results
