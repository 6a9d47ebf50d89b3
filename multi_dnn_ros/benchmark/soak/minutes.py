"""Figures of a soak for each minute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from multi_dnn_ros.benchmark.samples import Receipts
from multi_dnn_ros.benchmark.soak.resources import SoakSample

_MINUTE_S = 60.0
#: A shorter remainder does not count as a minute, because a run ends up to one step after its planned length.
_MIN_REMAINDER_S = 1.0


@dataclass(frozen=True)
class Minute:
    """One minute; the last one may be shorter. Memory, threads and files are medians of `samples` samples, latencies
    percentiles of `results` results; None without any.
    """

    minute: int
    results: int
    results_per_s: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    samples: int
    memory_mib: float | None
    node_mib: float | None
    shared_mib: float | None
    pss_mib: float | None
    files: float | None
    threads: float | None
    engine_processes: float | None
    gpu_mib: float | None

    def line(self) -> str:
        """For the terminal."""
        return (
            f"minute {self.minute}: {self.results_per_s:.1f} results/s, p50 {_shown(self.p50_ms)} ms, "
            f"p95 {_shown(self.p95_ms)} ms, memory {_shown(self.memory_mib, 1)} MiB (node {_shown(self.node_mib, 1)}), "
            f"{_shown(self.files)} files, {_shown(self.threads)} threads"
        )


def per_minute(
    samples: Sequence[SoakSample], receipts: Sequence[Receipts], begin_s: float, end_s: float
) -> list[Minute]:
    """Figures for each minute from begin_s to end_s, which are on the clock of samples and receipts."""
    count = max(1, int(np.ceil((end_s - begin_s - _MIN_REMAINDER_S) / _MINUTE_S)))
    return [
        _minute(number, samples, receipts, begin_s + number * _MINUTE_S, min(end_s, begin_s + (number + 1) * _MINUTE_S))
        for number in range(count)
    ]


def _minute(
    number: int, samples: Sequence[SoakSample], receipts: Sequence[Receipts], begin_s: float, end_s: float
) -> Minute:
    latencies = [latency_ms for stream in receipts for latency_ms in stream.between(begin_s, end_s)]
    p50, p95, p99 = np.percentile(latencies, (50, 95, 99)).tolist() if latencies else (None, None, None)
    found = [sample for sample in samples if begin_s <= sample.at_s < end_s]

    def median(values: list[int], unit: int = 1) -> float | None:
        return float(np.median(values)) / unit if values else None

    mib = 1 << 20
    return Minute(
        number + 1,
        len(latencies),
        len(latencies) / max(end_s - begin_s, 1e-9),
        p50,
        p95,
        p99,
        len(found),
        memory_mib=median([sample.memory_bytes for sample in found], mib),
        node_mib=median([sample.node.anonymous_bytes for sample in found], mib),
        shared_mib=median([sample.shared_bytes for sample in found], mib),
        pss_mib=median([sample.node.pss_bytes + sample.engines.pss_bytes for sample in found], mib),
        files=median([sample.node.files + sample.engines.files for sample in found]),
        threads=median([sample.node.threads + sample.engines.threads for sample in found]),
        engine_processes=median([sample.engines.processes for sample in found]),
        gpu_mib=median([sample.gpu_bytes for sample in found], mib),
    )


def _shown(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
