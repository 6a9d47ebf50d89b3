"""What benchmarks measure: name, unit, and which direction is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from multi_dnn_ros.common.reporting import three_digits

MIB = 1 << 20


@dataclass(frozen=True)
class Quantity:
    """name: identifier. text: for people. better: empty for a figure that is neither good nor bad by itself."""

    name: str
    text: str
    unit: str
    better: Literal["higher", "lower", ""]

    @property
    def heading(self) -> str:
        return f"{self.text}, {self.unit}" if self.unit else self.text


RATE = Quantity("rate_hz", "highest rate per camera", "Hz", "higher")
RESULTS = Quantity("results_hz", "results per second", "1/s", "higher")
LATENCY_P50 = Quantity("latency_p50_ms", "latency p50", "ms", "lower")
LATENCY_P95 = Quantity("latency_p95_ms", "latency p95", "ms", "lower")
LATENCY_P99 = Quantity("latency_p99_ms", "latency p99", "ms", "lower")
CORES = Quantity("cpu_cores", "CPU cores busy", "", "")
CPU_PER_RESULT = Quantity("cpu_ms_per_result", "CPU time per result", "ms", "lower")
CPU_PER_FRAME = Quantity("cpu_ms_per_frame", "CPU time per frame", "ms", "lower")
MEMORY = Quantity("memory_mib", "memory", "MiB", "lower")
GPU = Quantity("gpu_percent", "GPU busy", "%", "")
GPU_MEMORY = Quantity("gpu_memory_mib", "GPU memory", "MiB", "lower")
POWER = Quantity("power_w", "power", "W", "")
ENERGY = Quantity("energy_j_per_result", "energy per result", "J", "lower")
TEMPERATURE = Quantity("temperature_c", "highest temperature", "°C", "")

QUANTITIES = (
    RATE, RESULTS, LATENCY_P50, LATENCY_P95, LATENCY_P99, CORES, CPU_PER_RESULT, CPU_PER_FRAME, MEMORY, GPU, GPU_MEMORY,
    POWER, ENERGY, TEMPERATURE,
)  # fmt: skip


def cell(value: float | None) -> str:
    """The value as the cell of a table."""
    return "-" if value is None else three_digits(value)
