"""Compares running the independent branches of a network concurrently with running all its operations in sequence."""

from __future__ import annotations

import copy
import random
import statistics
import sys
from typing import Any

import torch
from tqdm import tqdm

from multi_dnn_ros.backends import Stage, StaticStage
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.backends.static_stages import streams_of
from multi_dnn_ros.benchmark.paper.branch_networks import BranchNetwork, make_network
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.graph.cut import cut_module
from multi_dnn_ros.pipeline.choices import choose_backend

SERIAL = "serial"
#: Numbers of streams that are compared with serial execution.
STREAMS = (2, 4, 8)
_PRECISION = "fp16"


def measure_branches(
    name: str, device: torch.device, *, size: tuple[int, int] | None = None, rounds: int = 200, seed: int = 0
) -> dict[str, Any]:
    """Milliseconds per image, for a network in sequence and with each number of streams of STREAMS.

    Each condition is one captured graph at fp16, also with Inductor's kernels, and a sample is the mean of ten replays
    without gaps. Every condition runs once per round, in random order. name: as for branch_networks.make_network. size:
    (width, height) of the image; None: the network's default. Raises ValueError if a condition's outputs differ from
    the serial ones.
    """
    network = make_network(name, size, seed)
    order = random.Random(seed)
    with torch.cuda.device(device), torch.inference_mode():
        stages = _stages(network, device)
        inputs = tuple(tensor.to(device) for tensor in network.inputs)
        expected = tuple(tensor.clone() for tensor in stages[SERIAL](inputs))
        for condition, stage in stages.items():
            try:  # both may be off by the tolerance
                check_agreement(stage(inputs), expected, 2 * PRECISIONS[_PRECISION].tolerance(device))
            except ValueError as error:
                raise ValueError(f"{name}, {condition}: {error}") from None
        times: dict[str, list[float]] = {condition: [] for condition in stages}
        for _ in tqdm(range(rounds), desc=name, unit="round", disable=None):
            for condition in order.sample(list(stages), len(stages)):
                stage = stages[condition]
                times[condition].append(gpu_ms(lambda stage=stage: stage(inputs)))  # type: ignore[misc]
    medians = {condition: statistics.median(samples) for condition, samples in times.items()}
    return {
        "network": network.name,
        "inputs": [list(tensor.shape) for tensor in network.inputs],
        "precision": _PRECISION,
        "streams_used": {condition: streams_of(stage) for condition, stage in stages.items()},
        "ms": {condition: distribution(samples) for condition, samples in times.items()},
        "over_serial": {condition: ms / medians[SERIAL] for condition, ms in medians.items() if condition != SERIAL},
    }


def _stages(network: BranchNetwork, device: torch.device) -> dict[str, Any]:
    """The captured network by condition. Raises ValueError if it cannot be captured."""
    stages: dict[str, Stage] = {}
    for backend, prefix in (("cuda_graph", ""), ("inductor", "inductor, ")):
        for count in (1, *STREAMS):
            name = prefix + (SERIAL if count == 1 else f"{count} streams")
            # A copy, because preparing moves the weights, which graphs captured earlier still read.
            jobs = cut_module(copy.deepcopy(network.module), network.inputs, 1, fold_batch_norm=True)
            chosen = choose_backend(
                backend, device, _PRECISION, dnn=f"{network.name}, {name}", progress=_show, branches=str(count)
            )
            (stages[name],) = chosen.prepare(jobs, network.inputs, device)
            if not isinstance(stages[name], StaticStage):
                raise ValueError(f"{network.name}, {name}: it cannot be captured; the log has the reason")
    return stages


def _show(line: str) -> None:
    tqdm.write(line, file=sys.stderr)  # compiling takes minutes
