"""Warns if bf16 is slower than float32 on a CPU: always without bf16 instructions, and with them for some DNNs.

docs/measured.md has figures.
"""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch

from multi_dnn_ros.backends import Stage, Tensors, run_stages
from multi_dnn_ros.backends.cpu_features import has_bf16_products
from multi_dnn_ros.graph.cut import cut_module
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.pipeline.choices import backend_name, choose_backend

_ROUNDS = 7
#: A smaller difference may be chance.
_MIN_SLOWDOWN = 1.05


def missing_instructions(name: str, precision: str, device: torch.device) -> str | None:
    """A warning if DNN `name` is to compute in bf16 on a CPU without bf16 instructions."""
    if precision != "bf16" or device.type != "cpu" or has_bf16_products():
        return None
    return (
        f"parameter dnn.{name}.precision is 'bf16', but this CPU has no bf16 instructions (AVX512-BF16, AMX; bf16 on "
        "aarch64), so it is slower than float32; faster: auto"
    )


def slower_than_float32(dnn: Dnn, stages: tuple[Stage, ...]) -> str | None:
    """A warning if `stages`, the jobs of `dnn` in bf16 on the CPU, take longer than the DNN in float32.

    For this, the whole DNN is prepared in float32 with backend `auto` and dropped afterwards; both run alternately on
    one image.
    """
    cpu = torch.device("cpu")
    backend = backend_name("auto", cpu, dnn.name)
    inputs = dnn.example_inputs()
    (whole,) = choose_backend("auto", cpu, dnn=dnn.name).prepare(
        cut_module(dnn.module, inputs, 1, fold_batch_norm=True), inputs, cpu
    )
    image = tuple(torch.rand_like(tensor) for tensor in inputs)
    bf16_ms, float32_ms = median_times_ms(image, partial(run_stages, stages), whole)
    if bf16_ms < _MIN_SLOWDOWN * float32_ms:
        return None
    return (
        f"parameter dnn.{dnn.name}.precision is 'bf16', which takes {bf16_ms:.1f} ms per image on this CPU; float32 "
        f"({backend}) takes {float32_ms:.1f} ms; faster: auto"
    )


def median_times_ms(image: Tensors, bf16: Stage, float32: Stage) -> tuple[float, float]:
    """Median wall times of the two, which run alternately."""
    times: tuple[list[float], list[float]] = ([], [])
    with torch.inference_mode():
        for _ in range(_ROUNDS):
            for run, samples in zip((bf16, float32), times, strict=True):
                begin = time.perf_counter()
                run(image)
                samples.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times[0]), statistics.median(times[1])
