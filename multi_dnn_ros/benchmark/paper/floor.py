"""What no scheduling can beat: the bytes of a set over the device's bandwidth, or its operations over its rate.

Both rates are measured on the device, on the share of it that is measured. The floor says nothing of the latency of
short kernels in sequence, so a deep network at batch 1 stays above it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.backends.precision import PRECISIONS
from multi_dnn_ros.benchmark.paper.conditions import Condition, precision_of
from multi_dnn_ros.benchmark.paper.networks import example_image, make_network
from multi_dnn_ros.benchmark.paper.partition import Partition
from multi_dnn_ros.benchmark.paper.sets import DnnSet, Network
from multi_dnn_ros.compression.macs import Cost, cost

#: (network, alignment of its ranks or None for the original) -> what one inference costs.
Costs = Mapping[tuple[Network, int | None], Cost]

_ROUNDS = 5


@dataclass(frozen=True)
class Rates:
    """bytes_per_s: of a large copy, reads and writes. operations_per_s: of a large matrix product, by precision."""

    bytes_per_s: float
    operations_per_s: Mapping[str, float]


def measure_rates(device: str, sms: int | None, tf32: bool, cpu_threads: int) -> Rates:
    """On the device's share; tf32: whether fp32 products may be computed in TF32."""
    torch.set_num_threads(cpu_threads)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    partition = Partition(torch.device(device), sms)
    on_gpu = partition.device.type == "cuda"
    side, copied = (8192 if sms is None else 4096, 1 << 28) if on_gpu else (512, 1 << 24)
    with torch.inference_mode(), partition.own_stream():
        source = torch.zeros(copied, device=partition.device)
        target = torch.empty_like(source)
        seconds = _least_seconds(lambda: target.copy_(source), partition)
        bandwidth = 2 * source.numel() * source.element_size() / seconds
        rates = {}
        for precision in ("fp32", "fp16") if on_gpu else ("fp32",):
            matrix = torch.randn(side, side, device=partition.device).to(PRECISIONS[precision].dtype)
            product = torch.empty_like(matrix)
            seconds = _least_seconds(lambda: torch.mm(matrix, matrix, out=product), partition)  # noqa: B023
            rates[precision] = 2.0 * side**3 / seconds
    return Rates(bandwidth, rates)


def measure_costs(
    networks: Sequence[Network], alignments: Sequence[int | None], artifacts: Path | None
) -> dict[tuple[Network, int | None], Cost]:
    """Operations and bytes of each network, decomposed with each alignment; nothing is computed."""
    return {
        (network, alignment): cost(
            make_network(network, alignment=alignment, artifacts=artifacts, balanced=False), (example_image(network),)
        )
        for network in networks
        for alignment in alignments
    }


def floor_of(dnns: DnnSet, condition: Condition, costs: Costs, rates: Rates, device: torch.device) -> dict[str, Any]:
    """Milliseconds in which every DNN of the set can be through once, at best, and what bounds it."""
    precision = precision_of(condition, device)
    each = [costs[network, condition.decomposed] for network in dnns.networks]
    # Weights that a batch shares are read once for all of it.
    read = [costs[network, condition.decomposed] for network in dnns.kinds] if condition.batched else each
    moved = sum(cost.bytes for cost in read) * PRECISIONS[precision].dtype.itemsize // torch.float32.itemsize
    operations = 2 * sum(cost.macs for cost in each)
    times = {
        "bandwidth": moved / rates.bytes_per_s * 1e3,
        "operations": operations / rates.operations_per_s[precision] * 1e3,
    }
    bound = max(times, key=lambda name: times[name])
    return {"ms": times[bound], "bound": bound, "weight_bytes": moved, "operations": operations}


def _least_seconds(call: Callable[[], object], partition: Partition, calls: int = 4) -> float:
    call()
    partition.synchronize()
    times = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        partition.synchronize()
        times.append((time.perf_counter() - begin) / calls)
    return min(times)
