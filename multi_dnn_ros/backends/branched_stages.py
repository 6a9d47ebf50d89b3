"""Stages with their branches on several streams, where that is faster."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.branch_choice import (
    TRIED,
    ChoiceCache,
    check_repeatable,
    choice_key,
    choose_fastest,
    measure_in_turn,
)
from multi_dnn_ros.backends.branched_graph import BranchStreams, graph_key
from multi_dnn_ros.backends.branched_segments import SegmentCompiler, segmented
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.graph.branches import SerialGraphError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Candidate:
    """stage: a stage with branches. compile: compiles it in place."""

    stage: nn.Module
    compile: Callable[[], None]


class BranchedStages:
    """Makes stages with branches in parallel, or returns them unchanged.

    setting: the parameter `dnn.<dnn>.branches` as text, `auto` for its value 0. With `auto` several numbers of streams
    are measured and the fastest is kept, also for later runs; a number is used without measuring. make_streams: called
    with the number of streams to make.
    capture: prepares a candidate for measuring and compares its results with those of the unchanged stage; an exception
    rules the candidate out. ms: measures the milliseconds of a call. compiler: compiles the segments of candidates;
    None: they stay as they are.
    """

    def __init__(
        self,
        setting: str,
        make_streams: Callable[[int], BranchStreams],
        capture: Callable[[Stage], Stage],
        ms: Callable[[Callable[[], object]], float],
        cache: ChoiceCache | None = None,
        compiler: SegmentCompiler | None = None,
    ) -> None:
        self._setting = setting
        self._make_streams = make_streams
        self._capture = capture
        self._ms = ms
        self._cache = cache or ChoiceCache()
        self._compiler = compiler

    def choose(self, title: str, stage: Stage, source: nn.Module, inputs: Tensors, device: str) -> Stage:
        """The stage to use: `stage` itself, or a copy of `source` with branches that shares its tensors.

        title: names the stage in the log. source: the module that `stage` is, or was compiled from. inputs: examples,
        on the device. device: see choice_key.

        With a compiler, the number of streams is chosen by measuring candidates that are not compiled, and only the
        fastest is compiled and compared with `stage`: compiling dozens of segments takes minutes.
        """
        try:
            if self._setting != "auto":
                return self._use(title, stage, source, inputs, int(self._setting))
            key = choice_key(graph_key(source), inputs, device)
            known = self._cache.get(key)
            if known is not None:
                return self._use(title, stage, source, inputs, known)
            candidates = self._candidates(title, source, inputs, TRIED)
        except SerialGraphError as error:
            log.info("%s runs on one stream: %s", title, error)
            return stage
        if not candidates:
            return stage
        choice = self._measure(title, key, stage, candidates, inputs)
        return candidates[choice].stage if choice > 1 else stage

    def _use(self, title: str, stage: Stage, source: nn.Module, inputs: Tensors, count: int) -> Stage:
        """The stage on `count` streams, if it has branches."""
        candidate = self._candidates(title, source, inputs, (count,)).get(count)
        if candidate is None:
            return stage
        candidate.compile()
        return candidate.stage

    def _candidates(
        self, title: str, source: nn.Module, inputs: Tensors, counts: Sequence[int]
    ) -> dict[int, _Candidate]:
        """Candidates by number of streams allowed, without those that use as many streams as an earlier one."""
        found: dict[int, _Candidate] = {}
        used = {1}
        for count in counts:
            used_here: list[int] = []

            def make_streams(needed: int, used_here: list[int] = used_here) -> BranchStreams:
                used_here.append(needed)
                return self._make_streams(needed)

            candidate = self._candidate(title, source, inputs, count, make_streams) if count > 1 else None
            if candidate is not None and not used.issuperset(used_here):
                found[count] = candidate
                used.update(used_here)
        return found

    def _candidate(
        self, title: str, source: nn.Module, inputs: Tensors, count: int, make_streams: Callable[[int], BranchStreams]
    ) -> _Candidate | None:
        segments = segmented(source, count, make_streams, fuses=self._compiler is not None)
        if segments is None:
            return None
        if self._compiler is None:
            return _Candidate(segments.parallel, lambda: None)
        return _Candidate(segments.parallel, partial(self._compiler.compile, title, segments, inputs))

    def _measure(
        self, title: str, key: str, stage: Stage, candidates: Mapping[int, _Candidate], inputs: Tensors
    ) -> int:
        """The fastest number of streams; its candidate is then compiled."""
        serial = self._capture(stage)
        captured = self._captured(title, candidates, inputs)
        complete = len(captured) == len(candidates)
        if self._compiler is not None and captured:
            fastest = self._fastest(captured, inputs)
            captured.clear()  # their memory, which compiling may need
            candidates[fastest].compile()
            captured = self._captured(title, {fastest: candidates[fastest]}, inputs)
            complete = complete and bool(captured)
        times = self._times({1: serial, **captured}, inputs)
        choice = choose_fastest(times)
        if complete:  # a failure may be temporary
            self._cache.put(key, choice, times)
        medians = ", ".join(f"{count}: {statistics.median(ms):.3f} ms" for count, ms in times.items())
        log.info("%s runs on %d stream%s (%s)", title, choice, "s" if choice > 1 else "", medians)
        return choice

    def _captured(self, title: str, candidates: Mapping[int, _Candidate], inputs: Tensors) -> dict[int, Stage]:
        """Those of the candidates that work, captured."""
        captured: dict[int, Stage] = {}
        for count, candidate in candidates.items():
            try:
                graph = self._capture(candidate.stage)
                check_repeatable(graph, inputs)
            except Exception as error:  # whatever it raises, e.g. out of memory: the stage itself still works
                log.warning("%s is not run on %d streams: %s", title, count, summarize_error(error))
            else:
                captured[count] = graph
        return captured

    def _fastest(self, captured: Mapping[int, Stage], inputs: Tensors) -> int:
        """The number of streams with the smallest median time; at equal times the smallest number."""
        if len(captured) == 1:
            return next(iter(captured))
        medians = {count: statistics.median(ms) for count, ms in self._times(captured, inputs).items()}
        return min(medians, key=lambda count: (medians[count], count))

    def _times(self, captured: Mapping[int, Stage], inputs: Tensors) -> dict[int, list[float]]:
        return measure_in_turn({count: _call(graph, inputs) for count, graph in captured.items()}, self._ms)


def _call(stage: Stage, inputs: Tensors) -> Callable[[], object]:
    return lambda: stage(inputs)
