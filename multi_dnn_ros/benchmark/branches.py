"""Compares running the independent branches of a network concurrently with running all its operations in sequence."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from multi_dnn_ros.backends import Stage, StaticStage, Tensors
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.backends.static_stages import streams_of
from multi_dnn_ros.benchmark.branch_networks import BranchNetwork, make_network
from multi_dnn_ros.benchmark.branch_threads import ThreadedStage
from multi_dnn_ros.common.reporting import cpu_count, distribution
from multi_dnn_ros.common.torch_threads import torch_threads
from multi_dnn_ros.graph.branches import branches, critical_path, device_operations
from multi_dnn_ros.graph.cut import GraphStage, cut_module
from multi_dnn_ros.graph.stream_plan import plan_streams
from multi_dnn_ros.pipeline.choices import choose_backend

SERIAL = "serial"
ONE_THREAD = "one thread"
MERGED = "merged"
SIBLINGS = "siblings merged"
INDUCTOR = "inductor"


def measure_branches(
    name: str,
    device: torch.device,
    *,
    streams: Sequence[int] = (2, 4, 8),
    precision: str = "auto",
    size: tuple[int, int] | None = None,
    rounds: int = 200,
    seed: int = 0,
    images: int = 1,
    inductor: bool = False,
    siblings: bool = False,
) -> dict[str, Any]:
    """Milliseconds per batch of `images`, for a network in sequence and with each number of streams.

    On a GPU each condition is one captured graph, and a sample is the mean of ten replays without gaps. On a CPU the
    streams are threads, which divide the cores; the serial baseline uses all cores in each operation, and is also run
    on one thread. Every condition runs once per round, in random order. streams: numbers of streams to compare with the
    serial baseline. name: as for branch_networks.make_network. size: (width, height) of the images; None: the network's
    default. inductor: whether to measure Inductor's graphs, too: of the whole network, and of its segments on each
    number of streams. Raises ValueError if a condition's outputs differ from the serial ones, or if branches cannot be
    used.
    """
    network = make_network(name, size, seed, images)
    order = random.Random(seed)
    load = os.getloadavg()[0]
    structure = _structure(network, streams)
    prepare = _on_gpu if device.type == "cuda" else _on_cpu
    with contextlib.ExitStack() as stack:
        conditions, used = prepare(network, device, streams, precision, stack, inductor=inductor, siblings=siblings)
        inputs = tuple(tensor.to(device) for tensor in network.inputs)
        tolerance = PRECISIONS[precision].tolerance(device)
        times: dict[str, list[float]] = {name: [] for name in conditions}
        with torch.inference_mode():
            expected = tuple(tensor.clone() for tensor in conditions[SERIAL](inputs))
            for condition, run in conditions.items():
                try:
                    check_agreement(run(inputs), expected, 2 * tolerance)  # both may be off by the tolerance
                except ValueError as error:
                    raise ValueError(f"{name}, {condition}: {error}") from None
            for _ in tqdm(range(rounds), desc=name, unit="round", disable=None):
                for condition in order.sample(list(conditions), len(conditions)):
                    times[condition].append(_ms(conditions[condition], inputs, device))
    serial_ms = statistics.median(times[SERIAL])
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    figures: dict[str, Any] = {
        "network": network.name,
        "inputs": [list(tensor.shape) for tensor in network.inputs],
        "precision": precision,
        "load_average": [load, os.getloadavg()[0]],
        **structure,
        "streams_used": used,
        "ms": {name: distribution(samples) for name, samples in times.items()},
        "over_serial": {name: median / serial_ms for name, median in medians.items() if name != SERIAL},
    }
    if network.frames:
        images = len(network.inputs[0])
        figures["frames_per_s"] = {name: 1e3 * images / median for name, median in medians.items()}
    return figures


def _structure(network: BranchNetwork, streams: Sequence[int]) -> dict[str, Any]:
    """Size of the graph, and the times relative to serial that it allows, by the estimated costs of its operations.

    events: how often a stream waits for another one, by number of streams.
    """
    operations = device_operations(_stage(network.module, network.inputs).graph)
    total_s = sum(operation.cost_s for operation in operations)
    plans = {str(count): plan_streams(operations, count) for count in streams}
    return {
        "operations": len(operations),
        "branches": len(branches(operations)),
        "critical_path_over_serial": critical_path(operations)[1] / total_s,
        "predicted_over_serial": {count: plan.duration_s / total_s for count, plan in plans.items()},
        "events": {count: plan.events for count, plan in plans.items()},
    }


def _stage(module: nn.Module, inputs: Tensors) -> GraphStage:
    (stage,) = cut_module(module, inputs, 1, fold_batch_norm=True)
    return stage


def _condition_name(count: int, prefix: str = "") -> str:
    return f"{prefix}{count} streams"


@dataclass(frozen=True)
class GpuCondition:
    """streams: number of streams. merge_siblings: value of the parameter `dnn.<dnn>.merge_siblings`."""

    name: str
    backend: str
    module: nn.Module
    streams: int = 1
    merge_siblings: str = "never"


def gpu_conditions(
    network: BranchNetwork, streams: Sequence[int], *, inductor: bool = False, siblings: bool = False
) -> list[GpuCondition]:
    """The conditions on a GPU, the serial one first. The arguments are those of measure_branches()."""
    conditions = [GpuCondition(SERIAL, "cuda_graph", network.module)]
    conditions += [GpuCondition(_condition_name(count), "cuda_graph", network.module, count) for count in streams]
    if network.merged is not None:
        conditions.append(GpuCondition(MERGED, "cuda_graph", network.merged))
    if siblings:
        conditions += [
            GpuCondition(
                SIBLINGS if count == 1 else _condition_name(count, f"{SIBLINGS}, "), "cuda_graph", network.module,
                count, "always",
            )
            for count in (1, *streams)
        ]  # fmt: skip
    if inductor:
        conditions.append(GpuCondition(INDUCTOR, "inductor", network.module))
        prefix = f"{INDUCTOR}, "
        conditions += [
            GpuCondition(_condition_name(count, prefix), "inductor", network.module, count) for count in streams
        ]
    return conditions


def _on_gpu(
    network: BranchNetwork,
    device: torch.device,
    streams: Sequence[int],
    precision: str,
    stack: contextlib.ExitStack,
    *,
    inductor: bool,
    siblings: bool,
) -> tuple[dict[str, Stage], dict[str, int]]:
    """The stage of each condition, and the number of streams that it uses."""
    stack.enter_context(torch.cuda.device(device))
    stages: dict[str, Stage] = {}
    used: dict[str, int] = {}
    for condition in gpu_conditions(network, streams, inductor=inductor, siblings=siblings):
        title = f"{network.name}, {condition.name}"
        # A copy, because preparing moves the weights, which graphs captured earlier still read.
        module = copy.deepcopy(condition.module)
        chosen = choose_backend(
            condition.backend, device, precision, dnn=title, progress=_show, branches=str(condition.streams),
            merge_siblings=condition.merge_siblings,
        )  # fmt: skip
        (stage,) = chosen.prepare([_stage(module, network.inputs)], network.inputs, device)
        if not isinstance(stage, StaticStage):
            raise ValueError(f"{title}: the network cannot be captured; the log has the reason")
        used[condition.name], stages[condition.name] = streams_of(stage), stage
    if streams and max(used.values()) == 1:
        raise ValueError(f"{network.name}: no branches run at the same time; the log has the reason")
    return stages, used


def _show(line: str) -> None:
    tqdm.write(line, file=sys.stderr)  # compiling takes minutes


def _on_cpu(
    network: BranchNetwork,
    device: torch.device,
    streams: Sequence[int],
    precision: str,
    stack: contextlib.ExitStack,
    *,
    inductor: bool,
    siblings: bool,
) -> tuple[dict[str, Stage], dict[str, int]]:
    """As _on_gpu, with threads in place of streams."""
    if precision not in ("auto", "fp32"):
        raise ValueError(f"precision {precision} is measured on a GPU only; allowed on a CPU: auto, fp32")
    if inductor or siblings:
        raise ValueError("Inductor and merged siblings are compared on a GPU only")
    stack.enter_context(torch_threads(cpu_count()))
    stage = _stage(network.module, network.inputs)
    stages: dict[str, Stage] = {SERIAL: _eager(stage, network.inputs, device)}
    used = {SERIAL: 1}
    for name, count in ((ONE_THREAD, 1), *((_condition_name(count), count) for count in streams)):
        threads = ThreadedStage(stage, count, max(1, cpu_count() // count) if count > 1 else 1)
        stack.callback(threads.close)
        stages[name], used[name] = threads, threads.threads
    if network.merged is not None:
        stages[MERGED] = _eager(_stage(network.merged, network.inputs), network.inputs, device)
        used[MERGED] = 1
    return stages, used


def _eager(stage: GraphStage, inputs: Tensors, device: torch.device) -> Stage:
    (ready,) = Eager().prepare([stage], inputs, device)
    return ready


def _ms(stage: Callable[[Tensors], Tensors], inputs: Tensors, device: torch.device) -> float:
    if device.type == "cuda":
        return gpu_ms(lambda: stage(inputs))
    begin = time.perf_counter()
    stage(inputs)
    return (time.perf_counter() - begin) * 1e3
