"""Compares merged sibling operations of a network with separate ones, for each backend."""

from __future__ import annotations

import copy
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tqdm import tqdm

from multi_dnn_ros.backends import Stage, run_stages
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.benchmark.branch_networks import make_network
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.common.torch_threads import torch_threads
from multi_dnn_ros.graph.cut import cut_module
from multi_dnn_ros.graph.siblings import find_siblings
from multi_dnn_ros.pipeline.choices import choose_backend

SETTINGS = {"separate": "never", "merged": "always"}


def measure_siblings(
    name: str,
    backends: Sequence[str],
    device: torch.device,
    *,
    precision: str = "auto",
    size: tuple[int, int] | None = None,
    rounds: int = 200,
    threads: int = 1,
    seed: int = 0,
) -> dict[str, Any]:
    """Milliseconds per image of a network by backend, with separate and with merged siblings.

    All conditions run once per round, in random order. name: as for branch_networks.make_network. size:
    (width, height) of the images; None: the network's default. threads: PyTorch's threads. Raises ValueError if the
    network has no siblings, or if outputs differ.
    """
    with torch_threads(threads):
        return _measure(name, backends, device, precision, size, rounds, threads, seed)


def _measure(
    name: str, backends: Sequence[str], device: torch.device, precision: str, size: tuple[int, int] | None,
    rounds: int, threads: int, seed: int,
) -> dict[str, Any]:  # fmt: skip
    load = os.getloadavg()[0]
    network = make_network(name, size, seed)
    (stage,) = cut_module(network.module, network.inputs, 1, fold_batch_norm=True)
    groups = [len(each.operations) for each in find_siblings(stage.graph)]
    if not groups:
        raise ValueError(f"{name} has no sibling operations that can be merged")
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    inputs = tuple(tensor.to(device) for tensor in noise_like(network.inputs))
    for backend in backends:
        chains: dict[str, Sequence[Stage]] = {}
        for condition, setting in SETTINGS.items():
            chosen = choose_backend(backend, device, precision, dnn=f"{name}, {condition}", merge_siblings=setting)
            chains[condition] = chosen.prepare([copy.deepcopy(stage)], network.inputs, device)
            calls[backend, condition] = _call(chains[condition], inputs)
        with torch.inference_mode():
            expected = tuple(tensor.clone() for tensor in run_stages(chains["separate"], inputs))
            results = run_stages(chains["merged"], inputs)
            try:
                check_agreement(results, expected, 2 * PRECISIONS[precision].tolerance(device))
            except ValueError as error:
                raise ValueError(f"{name}, {backend}: {error}") from None
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    order = random.Random(seed)
    with torch.inference_mode():
        for _ in tqdm(range(rounds), desc=name, unit="round", disable=None):
            for key in order.sample(list(calls), len(calls)):
                times[key].append(gpu_ms(calls[key]) if device.type == "cuda" else _cpu_ms(calls[key]))
    return {
        "network": name,
        "inputs": [list(tensor.shape) for tensor in network.inputs],
        "precision": precision,
        "threads": threads,
        "load_average": [load, os.getloadavg()[0]],
        "siblings": groups,
        "backends": {
            backend: {
                "ms": {condition: distribution(times[backend, condition]) for condition in SETTINGS},
                "merged_over_separate": statistics.median(times[backend, "merged"])
                / statistics.median(times[backend, "separate"]),
                "median_of_paired_ratios": statistics.median(
                    merged / separate
                    for merged, separate in zip(times[backend, "merged"], times[backend, "separate"], strict=True)
                ),
            }
            for backend in backends
        },
    }


def _call(chain: Sequence[Stage], inputs: tuple[torch.Tensor, ...]) -> Callable[[], object]:
    return lambda: run_stages(chain, inputs)


def _cpu_ms(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3
