"""Merges sibling operations of a DNN's stages where that is faster; for every backend."""

from __future__ import annotations

import copy
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from multi_dnn_ros.backends import Backend, Shared, Stage, Tensors, run_stages
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.branch_choice import ChoiceCache, choice_key, choose_fastest, measure_in_turn
from multi_dnn_ros.backends.branched_graph import graph_key, only_graph, with_graph
from multi_dnn_ros.backends.device_errors import is_out_of_memory
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.static_stages import single_launches
from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.graph.branches import SerialGraphError
from multi_dnn_ros.graph.siblings import merge_siblings

log = logging.getLogger(__name__)

#: Values of the parameter `dnn.<dnn>.merge_siblings`.
SETTINGS = ("never", "measured", "always")
_SEPARATE, _MERGED = 1, 2  # as in ChoiceCache: 1 is the unchanged stage


class MergedSiblings:
    """Wraps a backend: merges siblings in the stages that it gets if the results agree and, with `measured`, if the DNN
    is then at least 2 % faster.

    setting: "measured" or "always". tolerance: largest error of a merged stage compared with the separate one, relative
    to the scale of its results. dnn: its name, for the log. device_name: returns what the times depend on besides the
    graph, including the number of threads or SMs that the caller of prepare() uses. ms: measures the milliseconds of a
    call; None: with the device's clock.
    """

    def __init__(
        self,
        backend: Backend,
        setting: str,
        tolerance: float = 1e-4,
        dnn: str = "",
        device_name: Callable[[], str] = str,
        *,
        cache: ChoiceCache | None = None,
        ms: Callable[[Callable[[], object]], float] | None = None,
    ) -> None:
        if setting not in SETTINGS[1:]:
            raise ValueError(f"setting is '{setting}'; allowed: {', '.join(SETTINGS[1:])}")
        self.backend = backend
        self._setting = setting
        self._tolerance = tolerance
        self._dnn = dnn or "the DNN"
        self._device_name = device_name
        self._cache = cache or ChoiceCache(kind="siblings", allowed=(_SEPARATE, _MERGED))
        self._ms = ms

    def prepare(
        self,
        stages: Sequence[nn.Module],
        inputs: Tensors,
        device: torch.device,
        shared: Shared | None = None,
    ) -> tuple[Stage, ...]:
        """Merge copies of the stages, compare them, choose, and prepare the chosen ones with the wrapped backend."""
        return self.backend.prepare(self._choose(stages, inputs, device, shared or Shared()), inputs, device, shared)

    def _choose(
        self, stages: Sequence[nn.Module], inputs: Tensors, device: torch.device, shared: Shared
    ) -> Sequence[nn.Module]:
        # Not stored in `shared` before the choice, so that merged weights that are not used are freed.
        weights = dict(shared.merged)
        merged = [_merged(stage, weights) or stage for stage in stages]
        if all(left is right for left, right in zip(merged, stages, strict=True)):
            return stages
        try:
            self._check(stages, merged, inputs, device)
            if self._setting == "measured" and not self._is_faster(stages, merged, inputs, device):
                return stages
        except Exception as error:  # whatever the merged operations raise, the separate ones still work
            if is_out_of_memory(error):
                raise
            log.warning("sibling operations of %s stay separate: %s", self._dnn, summarize_error(error))
            return stages
        shared.merged.update(weights)
        return merged

    def _check(
        self, stages: Sequence[nn.Module], merged: Sequence[nn.Module], inputs: Tensors, device: torch.device
    ) -> None:
        """Compare copies on the device, so that weights which are not used later do not stay there."""
        with torch.inference_mode():
            carried = tuple(tensor.to(device) for tensor in noise_like(inputs))
            for stage, merged_stage in zip(stages, merged, strict=True):
                expected: Tensors = copy.deepcopy(stage).to(device)(carried)
                if merged_stage is not stage:
                    check_agreement(copy.deepcopy(merged_stage).to(device)(carried), expected, self._tolerance)
                carried = expected

    def _is_faster(
        self, stages: Sequence[nn.Module], merged: Sequence[nn.Module], inputs: Tensors, device: torch.device
    ) -> bool:
        graphs = [line for stage in stages for line in _graph_key(stage)]
        key = choice_key(graphs, inputs, self._device_name())
        known = self._cache.get(key)
        if known is not None:
            return known == _MERGED
        device_inputs = tuple(tensor.to(device) for tensor in inputs)
        # Copies: preparing moves weights, and the chosen stages are prepared again with the state of the whole DNN.
        prepared = {
            number: self.backend.prepare(copy.deepcopy(list(chain)), inputs, device)
            for number, chain in ((_SEPARATE, stages), (_MERGED, merged))
        }
        with torch.inference_mode():
            calls = {number: _call(chain, device_inputs) for number, chain in prepared.items()}
            times = measure_in_turn(calls, self._ms or (gpu_ms if device.type == "cuda" else _cpu_ms))
        choice = choose_fastest(times)
        self._cache.put(key, choice, times)
        medians = {number: statistics.median(ms) for number, ms in times.items()}
        log.info(
            "sibling operations of %s are %s (separate %.3f ms, merged %.3f ms)",
            self._dnn, "merged" if choice == _MERGED else "separate", medians[_SEPARATE], medians[_MERGED],
        )  # fmt: skip
        return choice == _MERGED


def _merged(stage: nn.Module, weights: dict[tuple[int, ...], torch.Tensor]) -> nn.Module | None:
    """A copy of the stage with merged siblings; None if it has none, or consists of several graphs."""
    try:
        graph_module = only_graph(stage)
    except SerialGraphError:
        return None
    merged_graph = merge_siblings(graph_module, weights)
    return None if merged_graph is None else with_graph(stage, graph_module, merged_graph)


def _graph_key(stage: nn.Module) -> tuple[str, ...]:
    graphs = [part for part in stage.modules() if isinstance(part, fx.GraphModule)]
    return graph_key(stage) if len(graphs) == 1 else (type(stage).__name__,)


def _call(chain: Sequence[Stage], inputs: Tensors) -> Callable[[], Any]:
    """Return a function that runs one inference as served while no other frame waits: in one launch, if prepared."""
    whole = single_launches({1: chain}).get(1)
    return lambda: run_stages(chain if whole is None else (whole,), inputs)


def _cpu_ms(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3
