"""Compares running the independent branches of a network concurrently with running all its operations in sequence."""

from __future__ import annotations

import contextlib
import copy
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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
from multi_dnn_ros.benchmark.paper.branch_networks import BranchNetwork, make_network
from multi_dnn_ros.common.reporting import cpu_count, distribution
from multi_dnn_ros.common.torch_threads import torch_threads
from multi_dnn_ros.graph.branches import device_operations
from multi_dnn_ros.graph.cut import GraphStage, cut_module
from multi_dnn_ros.graph.planned_graph import PlannedGraph, PlannedOperation, Values
from multi_dnn_ros.graph.stream_plan import plan_streams
from multi_dnn_ros.pipeline.choices import choose_backend

SERIAL = "serial"
#: Numbers of streams that are compared with serial execution.
STREAMS = (2, 4, 8)


def measure_branches(
    name: str, device: torch.device, *, size: tuple[int, int] | None = None, rounds: int = 200, seed: int = 0
) -> dict[str, Any]:
    """Milliseconds per image, for a network in sequence and with each number of streams of STREAMS.

    On a GPU each condition is one captured graph at fp16, also with Inductor's graphs, and a sample is the mean of ten
    replays without gaps. On a CPU the streams are threads, which divide the cores; the serial baseline uses all of them
    in each operation. Every condition runs once per round, in random order. name: as for branch_networks.make_network.
    size: (width, height) of the image; None: the network's default. Raises ValueError if a condition's outputs differ
    from the serial ones.
    """
    network = make_network(name, size, seed)
    precision = "fp16" if device.type == "cuda" else "auto"
    order = random.Random(seed)
    load = os.getloadavg()[0]
    prepare = _on_gpu if device.type == "cuda" else _on_cpu
    with contextlib.ExitStack() as stack:
        conditions, used = prepare(network, device, stack)
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
    return {
        "network": network.name,
        "inputs": [list(tensor.shape) for tensor in network.inputs],
        "precision": precision,
        "load_average": [load, os.getloadavg()[0]],
        "streams_used": used,
        "ms": {name: distribution(samples) for name, samples in times.items()},
        "over_serial": {name: median / serial_ms for name, median in medians.items() if name != SERIAL},
    }


def _stage(module: nn.Module, inputs: Tensors) -> GraphStage:
    (stage,) = cut_module(module, inputs, 1, fold_batch_norm=True)
    return stage


def _on_gpu(
    network: BranchNetwork, device: torch.device, stack: contextlib.ExitStack
) -> tuple[dict[str, Stage], dict[str, int]]:
    """The stage of each condition, and the number of streams that it uses."""
    stack.enter_context(torch.cuda.device(device))
    stages: dict[str, Stage] = {}
    used: dict[str, int] = {}
    for backend, prefix in (("cuda_graph", ""), ("inductor", "inductor, ")):
        for count in (1, *STREAMS):
            name = prefix + (SERIAL if count == 1 else f"{count} streams")
            # A copy, because preparing moves the weights, which graphs captured earlier still read.
            module = copy.deepcopy(network.module)
            chosen = choose_backend(
                backend, device, "fp16", dnn=f"{network.name}, {name}", progress=_show, branches=str(count)
            )
            (stage,) = chosen.prepare([_stage(module, network.inputs)], network.inputs, device)
            if not isinstance(stage, StaticStage):
                raise ValueError(f"{network.name}, {name}: it cannot be captured; the log has the reason")
            used[name], stages[name] = streams_of(stage), stage
    return stages, used


def _show(line: str) -> None:
    tqdm.write(line, file=sys.stderr)  # compiling takes minutes


def _on_cpu(
    network: BranchNetwork, device: torch.device, stack: contextlib.ExitStack
) -> tuple[dict[str, Stage], dict[str, int]]:
    """As _on_gpu, with threads in place of streams."""
    stack.enter_context(torch_threads(cpu_count()))
    stage = _stage(network.module, network.inputs)
    (serial,) = Eager().prepare([stage], network.inputs, device)
    stages: dict[str, Stage] = {SERIAL: serial}
    used = {SERIAL: 1}
    for count in STREAMS:
        threads = ThreadedStage(stage, count, max(1, cpu_count() // count), stack)
        stages[f"{count} streams"], used[f"{count} streams"] = threads, len(threads.pools)
    return stages, used


class ThreadedStage:
    """Runs a stage on a CPU with a thread for each stream of its plan, until `stack` is closed.

    streams: maximum number of threads. operation_threads: PyTorch's number of threads per operation.
    """

    def __init__(self, stage: GraphStage, streams: int, operation_threads: int, stack: contextlib.ExitStack) -> None:
        plan = plan_streams(device_operations(stage.graph), streams)
        self._planned = PlannedGraph(stage.graph, plan)
        self.pools = [
            stack.enter_context(ThreadPoolExecutor(1, "branch", torch.set_num_threads, (operation_threads,)))
            for _ in range(plan.streams)
        ]

    def __call__(self, carried: Tensors) -> Tensors:
        """The stage's outputs. Raises what an operation raises."""
        values = self._planned.values(carried)
        for node in self._planned.views_of_inputs:
            self._planned.compute(node, values)
        done: dict[str, Future[None]] = {}
        for operation in self._planned.operations:  # in the order of the plan, so that no thread waits forever
            waits = [done[source] for source in operation.step.waits]
            done[operation.step.name] = self.pools[operation.step.stream].submit(self._run, operation, waits, values)
        for future in done.values():
            future.result()
        return self._planned.results(values)

    @torch.inference_mode()
    def _run(self, operation: PlannedOperation, waits: list[Future[None]], values: Values) -> None:
        for future in waits:
            future.result()
        for node in (operation.node, *operation.views):
            self._planned.compute(node, values)


def _ms(stage: Callable[[Tensors], Tensors], inputs: Tensors, device: torch.device) -> float:
    if device.type == "cuda":
        return gpu_ms(lambda: stage(inputs))
    begin = time.perf_counter()
    stage(inputs)
    return (time.perf_counter() - begin) * 1e3
