"""Layer times under background load: training data of a predictor.

After Yoo, Jeong, Moon, Analyzing the Execution Time of Different DNN Hidden Layer Types During Inference Under GPU
Contention, KIISE Transactions on Computing Practices 26(10), 2020.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.backends import run_stages
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.models.cut import cut_graph
from multi_dnn_ros.planning.layer_chain import Run, make_layer_chain
from multi_dnn_ros.planning.timing import Target
from multi_dnn_ros.profiling.limits import DeviceLimits
from multi_dnn_ros.profiling.loads import background_load
from multi_dnn_ros.profiling.network import Network, ReportProgress
from multi_dnn_ros.profiling.predictor import Load, LoadKind, ProfileError
from multi_dnn_ros.profiling.samples import Machine, Sample, read_samples, write_rows

_WARM_UP_ROUNDS = 2


def loads_of(kinds: Sequence[LoadKind], levels: Sequence[int]) -> list[Load]:
    """Every kind of load at every level; without load once, if there is level 0."""
    return [*([Load()] if 0 in levels else []), *(Load(kind, level) for kind in kinds for level in levels if level)]


def machine_of(target: Target, limits: DeviceLimits) -> Machine:
    """The machine as it is named in tables and predictors."""
    threads = torch.get_num_threads()
    spare = max(0, cpu_count() - threads) if target.device.type == "cpu" else 1
    return Machine(
        device=target.device_name, backend=target.backend, versions=target.versions(), threads=threads, spare=spare,
        flops_per_s=limits.flops_per_s, bytes_per_s=limits.bytes_per_s,
    )  # fmt: skip


def measure_contention(
    networks: Sequence[Network],
    target: Target,
    machine: Machine,
    loads: Sequence[Load],
    path: Path,
    *,
    load_network: Network,
    progress: ReportProgress = lambda done, total: None,
    background: Callable[..., Any] = background_load,
    chain: Callable[..., Run] = make_layer_chain,
) -> list[Sample]:
    """Time every layer of `networks` under every load, `target.rounds` times, except what the table at `path` has.

    The rows of each network and load are written at once, so that an interrupted measurement can go on. The loads run
    in random order, so that drift of the machine affects all alike. load_network: runs under load `dnn`. background,
    chain: replacements for tests. Returns all rows of the table. Raises ProfileError if the table is of another machine
    or of another network with the same name.
    """
    rows = read_samples(path) if path.exists() else []
    if others := {row.name for row in rows} - {machine.name}:
        raise ProfileError(
            f"{path} was measured on '{others.pop()}'; this is '{machine.name}'; name another file with --output"
        )
    order = random.Random(0)
    known = {(row.model, row.load) for row in rows}
    missing = {network.name: [load for load in loads if (network.name, load) not in known] for network in networks}
    done, total = 0, sum(map(len, missing.values()))
    start_inference = _inferences(load_network, target)
    for network in networks:
        traced = network.traced(target.batch)
        layers = traced.layers(target.dtype)
        earlier = {(row.layer, row.work) for row in rows if row.model == network.name}
        if earlier - {(layer.name, layer.work) for layer in layers}:
            raise ProfileError(f"{path} has layers of another {network.name}; name another file with --output")
        if not missing[network.name]:
            continue
        times_of_layers = chain(traced, target)
        for load in order.sample(missing[network.name], len(missing[network.name])):
            progress(done, total)
            with background(load, target.device, start_inference):
                rounds = [times_of_layers() for _ in range(_WARM_UP_ROUNDS + target.rounds)][_WARM_UP_ROUNDS:]
            rows += [
                Sample(
                    **machine.model_dump(), model=network.name, layer=layer.name, **asdict(layer.work),
                    load_kind=load.kind, load_level=load.level, ms=statistics.median(ms), rounds=target.rounds,
                )
                for layer, ms in zip(layers, zip(*rounds, strict=True), strict=True)
            ]  # fmt: skip
            write_rows(path, [row.model_dump() for row in rows])
            done += 1
    progress(total, total)
    return rows


def _inferences(network: Network, target: Target) -> Callable[[], Callable[[], object]]:
    """A function that prepares the network of load `dnn`: a copy per thread on a GPU, one for all on a CPU."""

    def make() -> Callable[[], object]:
        traced = network.traced(target.batch)
        inputs = tuple(tensor.to(target.device) for tensor in traced.inputs)
        stages = target.make_backend().prepare(cut_graph(traced.graph_module, 1), inputs, target.device)
        return partial(run_stages, stages, inputs)

    return cache(make) if target.device.type == "cpu" else make
