"""Stages with their branches on several streams, where that is faster."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence

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
from multi_dnn_ros.backends.branched_graph import BranchStreams, branched, graph_key
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.graph.branches import SerialGraphError

log = logging.getLogger(__name__)


class BranchedStages:
    """Makes stages with branches in parallel, or returns them unchanged.

    setting: the parameter `dnn.<dnn>.branches` as text, `auto` for its value 0. With `auto` several numbers of streams
    are measured and the fastest is kept, also for later runs; a number is used without measuring. make_streams: called
    with the number of streams to make.
    capture: prepares a candidate for measuring and compares its results with those of the unchanged stage; an exception
    rules the candidate out. ms: measures the milliseconds of a call.
    """

    def __init__(
        self,
        setting: str,
        make_streams: Callable[[int], BranchStreams],
        capture: Callable[[Stage], Stage],
        ms: Callable[[Callable[[], object]], float],
        cache: ChoiceCache | None = None,
    ) -> None:
        self._setting = setting
        self._make_streams = make_streams
        self._capture = capture
        self._ms = ms
        self._cache = cache or ChoiceCache()

    def choose(self, title: str, stage: nn.Module, inputs: Tensors, device: str) -> Stage:
        """The stage to use: `stage` itself, or a copy with branches that shares its tensors.

        title: names the stage in the log. inputs: examples, on the device. device: see choice_key.
        """
        try:
            if self._setting != "auto":
                return self._candidates(stage, (int(self._setting),)).get(int(self._setting), stage)
            key = choice_key(graph_key(stage), inputs, device)
            known = self._cache.get(key)
            candidates = self._candidates(stage, TRIED if known is None else (known,))
        except SerialGraphError as error:
            log.info("%s runs on one stream: %s", title, error)
            return stage
        if known is not None or not candidates:
            return candidates.get(known or 1, stage)
        return candidates.get(self._measure(title, key, stage, candidates, inputs), stage)

    def _candidates(self, stage: nn.Module, counts: Sequence[int]) -> dict[int, nn.Module]:
        """Stages by number of streams allowed, without those that use as many streams as an earlier one."""
        found: dict[int, nn.Module] = {}
        used = {1}
        for count in counts:
            used_here: list[int] = []

            def make_streams(needed: int, used_here: list[int] = used_here) -> BranchStreams:
                used_here.append(needed)
                return self._make_streams(needed)

            candidate = branched(stage, count, make_streams) if count > 1 else None
            if candidate is not None and not used.issuperset(used_here):
                found[count] = candidate
                used.update(used_here)
        return found

    def _measure(
        self, title: str, key: str, stage: nn.Module, candidates: dict[int, nn.Module], inputs: Tensors
    ) -> int:
        captured: dict[int, Stage] = {1: self._capture(stage)}
        for count, candidate in candidates.items():
            try:
                graph = self._capture(candidate)
                check_repeatable(graph, inputs)
            except Exception as error:  # whatever it raises, e.g. out of memory: the stage itself still works
                log.warning("%s is not run on %d streams: %s", title, count, summarize_error(error))
            else:
                captured[count] = graph
        calls = {count: _call(graph, inputs) for count, graph in captured.items()}
        times = measure_in_turn(calls, self._ms)
        choice = choose_fastest(times)
        if len(captured) == 1 + len(candidates):  # a failure may be temporary
            self._cache.put(key, choice, times)
        medians = ", ".join(f"{count}: {statistics.median(ms):.3f} ms" for count, ms in times.items())
        log.info("%s runs on %d stream%s (%s)", title, choice, "s" if choice > 1 else "", medians)
        return choice


def _call(stage: Stage, inputs: Tensors) -> Callable[[], object]:
    return lambda: stage(inputs)
