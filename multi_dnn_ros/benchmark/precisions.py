"""Each network alone on one core in float32, int8 and bfloat16, as the node serves it."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from multi_dnn_ros.backends import Stage, Tensors, run_stages
from multi_dnn_ros.backends.agreement import noise_like
from multi_dnn_ros.common.captured_warnings import CapturedWarnings
from multi_dnn_ros.common.cpu_features import has_bf16_products
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.common.torch_threads import torch_threads
from multi_dnn_ros.graph.cut import cut_module
from multi_dnn_ros.models.dnn import Source
from multi_dnn_ros.models.sources import load_network
from multi_dnn_ros.pipeline.calibration import calibration_inputs
from multi_dnn_ros.pipeline.choices import backend_name, check_backend, choose_backend
from multi_dnn_ros.vision.preprocess import Preprocess

BASELINE = "fp32"
#: Input size of networks that specify none; usual for classifiers.
_SIZE = (224, 224)
_CPU = torch.device("cpu")


def measure_precisions(model: str, precisions: Sequence[str], folder: str, rounds: int, seed: int) -> dict[str, Any]:
    """CPU time in milliseconds per image of a network by precision, with batch 1, one thread and one job.

    All precisions, and float32, run once per round in random order, in the calling thread; preprocessing is left out.
    model: as for parameter `dnn.<dnn>.model`; torchvision models have random weights. folder: parameter
    `calibration_images`.
    Raises ConfigError for a precision that this CPU does not have.
    """
    for precision in precisions:
        check_backend("auto", _CPU, precision)
    with torch_threads(1):
        return _measure(model, precisions, folder, rounds, random.Random(seed))


def _measure(model: str, precisions: Sequence[str], folder: str, rounds: int, order: random.Random) -> dict[str, Any]:
    torch.manual_seed(0)
    source = load_network(model, weights="random" if model.startswith("torchvision:") else "default")
    width, height = source.size or _SIZE
    inputs = noise_like((torch.zeros(1, 3, height, width),))
    names = [BASELINE, *(name for name in precisions if name != BASELINE)]
    chains, warnings = {}, {}
    for name in names:
        with CapturedWarnings("multi_dnn_ros.backends") as captured:
            chains[name] = _prepared(source, model, name, folder, inputs)
        warnings[name] = captured.messages
    times: dict[str, list[float]] = {name: [] for name in names}
    load = os.getloadavg()[0]
    with torch.inference_mode():
        for chain in chains.values():  # warm up
            run_stages(chain, inputs)
        for _ in tqdm(range(rounds), desc=model, unit="round", disable=None):
            for name in order.sample(names, len(names)):
                begin = time.thread_time()
                run_stages(chains[name], inputs)
                times[name].append((time.thread_time() - begin) * 1e3)
    base = times[BASELINE]
    return {
        "model": model,
        "input": [height, width],
        "load_average": [load, os.getloadavg()[0]],
        "bf16_instructions": has_bf16_products(),
        "backend": {name: backend_name("auto", _CPU, precision=name) for name in names},
        "warnings": warnings,
        "cpu_ms": {name: distribution(samples) for name, samples in times.items()},
        "over_fp32": {
            name: {
                "medians": statistics.median(times[name]) / statistics.median(base),
                "minima": min(times[name]) / min(base),
            }
            for name in names[1:]
        },
    }


def _prepared(source: Source, model: str, precision: str, folder: str, inputs: Tensors) -> Sequence[Stage]:
    height, width = inputs[0].shape[2:]
    normalization = {key: source.preprocess[key] for key in ("mean", "std") if key in source.preprocess}
    images = partial(calibration_inputs, folder, Preprocess(width, height, **normalization))
    backend = choose_backend("auto", _CPU, precision, dnn=model, calibration=images)
    return backend.prepare(cut_module(source.network, inputs, 1, fold_batch_norm=True), inputs, _CPU)
