"""Each network alone on one core: as the node serves it, compared with ONNX Runtime on the whole network."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import onnxruntime
import torch
from torch import nn
from tqdm import tqdm

from multi_dnn_ros.backends import Stage, Tensors, run_stages
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.onnx_export import memory_file
from multi_dnn_ros.backends.static_stages import single_launches
from multi_dnn_ros.benchmark.plain_export import export_network
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.common.torch_threads import torch_threads
from multi_dnn_ros.graph.cut import cut_module
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.pipeline.choices import choose_backend

DIRECT = "ONNX Runtime directly"
WHOLE = "as one network"
JOBS = "job by job"
TORCHSCRIPT = "torchscript, job by job"
#: Input size of networks that specify none; usual for classifiers.
_SIZE = (224, 224)


def measure_alone(models: Sequence[str], jobs: int, rounds: int, seed: int) -> list[dict[str, Any]]:
    """CPU time in milliseconds per image, batch 1, float32, one thread, for each of `models`.

    Preprocessing is left out. All conditions compute in the calling thread; its CPU time equals the elapsed time on an
    idle machine and is less affected by other processes. models: as for parameter `dnn.<dnn>.model`; torchvision models
    have random weights. jobs: number of jobs per network. In each round every condition runs once, in random order.
    Raises ValueError if the conditions' outputs differ.
    """
    with torch_threads(1):
        return [_measure(model, jobs, rounds, random.Random(seed)) for model in models]


def _measure(model: str, jobs: int, rounds: int, order: random.Random) -> dict[str, Any]:
    torch.manual_seed(0)
    source = load_network(model, weights="random" if model.startswith("torchvision:") else "default")
    width, height = source.size or _SIZE
    inputs = noise_like((torch.zeros(1, 3, height, width),))
    network = source.network
    conditions = _conditions(network, inputs, jobs)
    times: dict[str, list[float]] = {name: [] for name in conditions}
    load = os.getloadavg()[0]
    with torch.inference_mode():
        expected = conditions[DIRECT](inputs)
        for run in conditions.values():
            check_agreement(run(inputs), expected, 1e-4)
        for _ in tqdm(range(rounds), desc=model, unit="round", disable=None):
            for name in order.sample(list(conditions), len(conditions)):
                begin = time.thread_time()
                conditions[name](inputs)
                times[name].append((time.thread_time() - begin) * 1e3)
    return {
        "model": model,
        "input": [height, width],
        "jobs": jobs,
        "load_average": [load, os.getloadavg()[0]],
        "cpu_ms": {name: distribution(samples) for name, samples in times.items()},
        "over_direct": {
            name: {
                "medians": statistics.median(samples) / statistics.median(times[DIRECT]),
                "minima": min(samples) / min(times[DIRECT]),
            }
            for name, samples in times.items()
            if name != DIRECT
        },
    }


def _conditions(network: nn.Module, inputs: Tensors, jobs: int) -> dict[str, Callable[[Tensors], Tensors]]:
    direct = _run_directly(network, inputs)
    served = _prepared("onnxruntime", network, inputs, jobs)
    scripts = _prepared("torchscript", network, inputs, jobs)
    whole = single_launches({1: served}).get(1)
    if whole is None:
        raise ValueError(f"{type(network).__name__} does not run as sessions, or has one job only")
    return {DIRECT: direct, WHOLE: whole, JOBS: partial(run_stages, served), TORCHSCRIPT: partial(run_stages, scripts)}


def _prepared(backend: str, network: nn.Module, inputs: Tensors, jobs: int) -> Sequence[Stage]:
    cpu = torch.device("cpu")
    return choose_backend(backend, cpu).prepare(cut_module(network, inputs, jobs, fold_batch_norm=True), inputs, cpu)


def _run_directly(network: nn.Module, inputs: Tensors) -> Callable[[Tensors], Tensors]:
    """Plain use of ONNX Runtime: the network exported by PyTorch, arrays in and out."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with memory_file("network.onnx") as path:
        export_network(network, inputs, path)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda carried: tuple(torch.from_numpy(array) for array in session.run(None, {name: carried[0].numpy()}))
