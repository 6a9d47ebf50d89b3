"""Lower bound for any schedule: the set's memory traffic over the bandwidth, or its operations over the peak rate.

Both rates are the measured limits of the used share of the device. The bound ignores the latency of short sequential
kernels, so a deep network at batch 1 stays above it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.green_contexts import with_own_cudnn_plans
from multi_dnn_ros.backends.precision import PRECISIONS, float32_products
from multi_dnn_ros.benchmark.paper.conditions import Condition, precision_of
from multi_dnn_ros.benchmark.paper.networks import example_image, make_network
from multi_dnn_ros.benchmark.paper.partition import Partition
from multi_dnn_ros.benchmark.paper.sets import DnnSet, Network
from multi_dnn_ros.compression.macs import Cost, cost
from multi_dnn_ros.planning.timing import Target
from multi_dnn_ros.profiling.limits import DeviceLimits, measure_limits

#: (network, alignment of its ranks or None for the original) -> cost of one inference.
Costs = Mapping[tuple[Network, int | None], Cost]


@dataclass(frozen=True)
class Rates:
    """bytes_per_s: read and written. operations_per_s: by precision. See planning.device.DeviceLimits."""

    bytes_per_s: float
    operations_per_s: Mapping[str, float]


def measure_rates(device: str, sms: int | None, tf32: bool, cpu_threads: int) -> Rates:
    """Rates of the device's share; tf32: whether fp32 may be computed in TF32."""
    torch.set_num_threads(cpu_threads)
    partition = Partition(torch.device(device), sms)
    precisions = ("fp32", "fp16") if partition.device.type == "cuda" else ("fp32",)

    def measure() -> dict[str, DeviceLimits]:
        with partition.own_stream(), float32_products(tf32):
            return {name: measure_limits(Target(partition.device, "eager", Eager, name)) for name in precisions}

    limits = with_own_cudnn_plans(sms or 0, measure)
    return Rates(
        max(each.bytes_per_s for each in limits.values()), {name: each.flops_per_s for name, each in limits.items()}
    )


def measure_costs(
    networks: Sequence[Network], alignments: Sequence[int | None], artifacts: Path | None
) -> dict[tuple[Network, int | None], Cost]:
    """Operations and bytes of each network, decomposed with each alignment; computed from the graph only."""
    return {
        (network, alignment): cost(
            make_network(network, alignment=alignment, artifacts=artifacts, balanced=False), (example_image(network),)
        )
        for network in networks
        for alignment in alignments
    }


def lower_bounds(
    dnns: DnnSet, condition: Condition, costs: Costs, rates: Rates, device: torch.device
) -> dict[str, Any]:
    """Minimum milliseconds for one inference of every DNN of the set, and the limiting resource."""
    precision = precision_of(condition, device)
    each = [costs[network, condition.decomposed] for network in dnns.networks]
    # A batch reads its weights once.
    read = [costs[network, condition.decomposed] for network in dnns.kinds] if condition.batched else each
    moved = sum(cost.bytes for cost in read) * PRECISIONS[precision].dtype.itemsize // torch.float32.itemsize
    operations = 2 * sum(cost.macs for cost in each)
    times = {
        "bandwidth": moved / rates.bytes_per_s * 1e3,
        "operations": operations / rates.operations_per_s[precision] * 1e3,
    }
    bound = max(times, key=lambda name: times[name])
    return {"ms": times[bound], "bound": bound, "weight_bytes": moved, "operations": operations}
