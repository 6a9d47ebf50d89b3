"""Layer times under background load: training data of the predictor."""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from multi_dnn_ros.backends import green_contexts
from multi_dnn_ros.common.reporting import cpu_count
from multi_dnn_ros.graph.cut import cut_graph
from multi_dnn_ros.planning.clock import clock_for
from multi_dnn_ros.planning.device import DeviceLimits, measure_limits
from multi_dnn_ros.planning.marks import layers_run
from multi_dnn_ros.planning.measure import Traced, trace_for
from multi_dnn_ros.planning.profile import Distribution, LayerShape, ProfileError, describe
from multi_dnn_ros.planning.samples import Load, LoadKind, Sample, Setting
from multi_dnn_ros.planning.timing import Target
from multi_dnn_ros.profiling.contention_table import ContentionTable
from multi_dnn_ros.profiling.loads import BackgroundLoad, MakeStream, ReadyNetwork
from multi_dnn_ros.profiling.network import Network

LEVELS = (0, 1, 2, 4, 8)
_WARM_UP_ROUNDS = 2
_BLOCKS = 2
T = TypeVar("T")


def loads_of(kinds: Sequence[LoadKind], levels: Sequence[int]) -> list[Load]:
    """Every kind of load at every level; without load only once."""
    loads = [Load(kind, level) for kind in kinds for level in levels if level and kind != "none"]
    return [Load(), *loads] if 0 in levels or not loads else loads


def measure_contention(
    networks: Sequence[Network],
    target: Target,
    limits: DeviceLimits,
    loads: Sequence[Load],
    *,
    load_network: Network | None = None,
    slices: Sequence[int] = (0,),
    table: ContentionTable | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    background: Callable[..., Any] = BackgroundLoad,
    timed: Callable[..., list[list[float]]] | None = None,
) -> list[Sample]:
    """Time every layer of `networks` under every load on every slice, except what `table` already has.

    target.rounds: rounds per load, measured in two blocks; the blocks of all loads run in random order, so that drift
    of the machine affects all loads alike. load_network: the network that DNN loads run. slices: numbers of SMs, 0 for
    the whole device, whose limits are `limits`. table: gets the times of each load when its blocks have run; None:
    a new one, which is not written. background, timed: replacements for tests. Returns the rows of the table. Raises
    ProfileError if the device does not support slices, or if the times do not belong into the table.
    """
    check_slices(slices, target)
    table = ContentionTable() if table is None else table
    network_of_load = _load_networks(load_network, target, seed)
    order = random.Random(seed)
    rounds = _BLOCKS * _rounds_of_block(target)
    settings = {
        sms: setting_of(target, _on_slice(sms, target, lambda _: measure_limits(target)) if sms else limits, sms)
        for sms in slices
    }
    missing = {
        (network.name, sms): [load for load in loads if not table.has(network.name, settings[sms], load, rounds)]
        for network in networks
        for sms in slices
    }
    total = _BLOCKS * sum(map(len, missing.values()))
    done = itertools.count()

    def running_load(load: Load, make_stream: MakeStream | None) -> Any:
        progress(next(done), total)
        return background(load, target, network_of_load, make_stream)

    for network in networks:
        traced = trace_for(network.module, network.shape, target, seed)
        shapes = describe(traced, cut_graph(traced.graph_module, 1)[0].layers)
        for sms in slices:
            table.expect_layers(network.name, settings[sms], shapes)
            blocks = order.sample(missing[network.name, sms] * _BLOCKS, len(missing[network.name, sms]) * _BLOCKS)
            if not blocks:
                continue
            keep = functools.partial(_add, table, network.name, settings[sms], shapes)
            measure = functools.partial(_measure_blocks, traced, target, blocks, running_load, timed, keep)
            _on_slice(sms, target, measure)
    progress(total, total)
    return table.rows


def _measure_blocks(
    traced: Traced,
    target: Target,
    blocks: Sequence[Load],
    running_load: Callable[[Load, MakeStream | None], Any],
    timed: Callable[..., list[list[float]]] | None,
    keep: Callable[[Load, list[list[float]]], None],
    make_stream: MakeStream | None,
) -> None:
    """Time the layers of one network under each load, on the calling thread's stream.

    blocks: the load of each block of rounds. running_load: returns a context manager that runs the load, on streams
    made by `make_stream`. keep: called when all blocks of a load have run, with the milliseconds of each layer in each
    round.
    """
    times: dict[Load, list[list[float]]] = {load: [] for load in blocks}
    left = Counter(blocks)
    with torch.inference_mode():
        stages = cut_graph(traced.graph_module, 1)
        inputs = tuple(tensor.to(target.device) for tensor in traced.inputs)
        run = layers_run(traced.graph_module, stages, inputs, target, clock_for(target.device))
        for load in blocks:
            with running_load(load, make_stream):
                for turn in range(-_WARM_UP_ROUNDS, _rounds_of_block(target)):
                    (layers,) = run() if timed is None else timed(load, len(stages[0].layers))
                    if turn >= 0:
                        times[load].append(layers)
            left[load] -= 1
            if not left[load]:
                keep(load, times[load])


def _add(
    table: ContentionTable,
    model: str,
    setting: Setting,
    shapes: Sequence[LayerShape],
    load: Load,
    times: Sequence[Sequence[float]],
) -> None:
    """Add the times of a model's layers under one load to the table. times: by round and layer, in milliseconds."""
    columns = zip(shapes, zip(*times, strict=True), strict=True)
    table.add([Sample.of(model, shape, Distribution.of(column), setting, load) for shape, column in columns])


def _rounds_of_block(target: Target) -> int:
    return max(1, target.rounds // _BLOCKS)


def setting_of(target: Target, limits: DeviceLimits, sms: int = 0) -> Setting:
    """The setting as samples and predictors name it. limits: those of the slice of `sms` SMs, or of the device if 0."""
    cores = cpu_count() if target.device.type == "cpu" else 0
    return Setting(
        limits.name, target.backend, target.precision, torch.get_num_threads(), cores, sms, limits.flops_per_s,
        limits.bytes_per_s,
    )  # fmt: skip


def check_slices(slices: Sequence[int], target: Target) -> None:
    """Raise ProfileError if the device cannot be restricted to these numbers of SMs."""
    for sms in slices:
        if sms and (problem := green_contexts.sms_problem(target.device, sms)):
            raise ProfileError(f"a slice of {sms} SMs was requested, but {problem}")


def _on_slice(sms: int, target: Target, work: Callable[[MakeStream | None], T]) -> T:
    """Return the result of `work`, called on a stream of `sms` SMs with a function that makes more such streams.

    If `sms` is 0, it runs on the whole device and gets None: loads then make their own streams.
    """

    def call_work() -> T:
        if not sms:
            return work(None)
        with green_contexts.computing_on(target.device, sms):
            current = torch.cuda.current_stream(target.device)

            def make_stream() -> torch.cuda.Stream:
                # Streams are assigned round-robin: skip this thread's, on which a load would not run in parallel.
                stream = green_contexts.make_stream(target.device, sms)
                return stream if stream != current else green_contexts.make_stream(target.device, sms)

            return work(make_stream)

    return green_contexts.with_own_cudnn_plans(sms, call_work)


def _load_networks(network: Network | None, target: Target, seed: int) -> Callable[[], ReadyNetwork]:
    """Return a function that makes the network of a DNN load: a copy per thread on a GPU, one for all on a CPU."""

    @functools.cache
    def trace() -> Traced:
        if network is None:
            raise ProfileError("a load of kind dnn needs a network to run")
        return trace_for(network.module, network.shape, target, seed)

    def make() -> ReadyNetwork:
        graph, inputs = trace().graph_module, tuple(tensor.to(target.device) for tensor in trace().inputs)
        return target.make_backend().prepare(cut_graph(copy.deepcopy(graph), 1), inputs, target.device), inputs

    return functools.cache(make) if target.device.type == "cpu" else make
