"""Cost of engine processes: the same node and cameras with parameter `isolation` process and none, alternating."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multi_dnn_ros.benchmark.cameras import CameraPlan
from multi_dnn_ros.benchmark.load import start_cameras
from multi_dnn_ros.benchmark.node_config import streams_of
from multi_dnn_ros.benchmark.rig import Rig
from multi_dnn_ros.common.reporting import distribution, table
from multi_dnn_ros.settings.schema import NodeConfig

BASELINE, OURS = "none", "process"
#: The camera of the CPU demo.
CAMERAS = (CameraPlan("front", (640, 480), "rgb8", 10.0),)
_WARM_UP_S = 3.0
_MIB = 1 << 20


def measure_isolation(
    config: NodeConfig,
    folder: Path,
    seconds: float,
    repeats: int,
    cameras: Sequence[CameraPlan] = (),
    seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Serve `cameras` for `seconds`, `repeats` times per value of `isolation`, alternating.

    Each run starts a new node. Raises CommandError if a node does not serve.
    """
    cameras = cameras or CAMERAS
    rates_hz = {plan.name: plan.rate_hz for plan in cameras}
    served = [(dnn, camera) for dnn, camera in streams_of(config, list(rates_hz)) if config.dnns[dnn].enable]
    turns = [(BASELINE, OURS) if number % 2 == 0 else (OURS, BASELINE) for number in range(repeats)]
    runs: dict[str, list[dict[str, Any]]] = {BASELINE: [], OURS: []}
    latencies: dict[str, list[float]] = {BASELINE: [], OURS: []}
    order = [isolation for pair in turns for isolation in pair]
    for number, isolation in enumerate(order, start=1):
        progress(f"run {number} of {len(order)}: isolation {isolation}, {seconds:g} s")
        run, run_latencies = _serve(
            config.model_copy(update={"isolation": isolation}), folder / f"{number}_{isolation}", seconds, cameras, seed
        )
        runs[isolation].append(run)
        latencies[isolation] += run_latencies
    summary = {isolation: _summary(runs[isolation], latencies[isolation]) for isolation in runs}
    return {
        "cameras": {
            plan.name: {"size": list(plan.size), "encoding": plan.encoding or "jpeg", "rate_hz": plan.rate_hz}
            for plan in cameras
        },
        "seconds": seconds,
        "repeats": repeats,
        "order": order,
        "sent_results_hz": sum(rates_hz[camera] for _, camera in served),
        "runs": runs,
        "isolation": summary,
        "process_over_none": _ratios(summary[OURS], summary[BASELINE]),
    }


def _serve(
    config: NodeConfig, folder: Path, seconds: float, cameras: Sequence[CameraPlan], seed: int
) -> tuple[dict[str, Any], list[float]]:
    """One run: its figures, and its results' latencies in ms."""
    with Rig(folder, config, cameras, seed) as rig:
        start_cameras(rig)
        rig.spin(_WARM_UP_S)
        first, begin_s = rig.samples[-1], rig.now()
        rig.spin(seconds)
        last, end_s = rig.samples[-1], rig.now()
        device = rig.value("node", "device")
        for plan in cameras:
            rig.stop_camera(plan.name)
        rig.settle()
        accounts = rig.accounts()
    found = [each for receipts in rig.receipts.values() for each in receipts.between(begin_s, end_s)]
    cores = (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s)
    rate_hz = len(found) / (end_s - begin_s)
    return {
        "device": device,
        "results": len(found),
        "results_hz": rate_hz,
        "latency_ms": distribution(found),
        "cpu_cores": cores,
        "cpu_ms_per_result": 1e3 * cores / rate_hz,
        "memory_bytes": last.resident_bytes,
        "accounts": {f"{dnn} on {camera}": counts for (dnn, camera), counts in accounts.items()},
    }, found


def _summary(runs: Sequence[Mapping[str, Any]], latencies: Sequence[float]) -> dict[str, Any]:
    """Medians over the runs; latencies over all their results."""
    medians = {
        key: float(np.median([run[key] for run in runs]))
        for key in ("results_hz", "cpu_cores", "cpu_ms_per_result", "memory_bytes")
    }
    return {**medians, "latency_ms": distribution(latencies)}


def _ratios(ours: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, float]:
    return {
        "results_hz": ours["results_hz"] / baseline["results_hz"],
        "cpu_ms_per_result": ours["cpu_ms_per_result"] / baseline["cpu_ms_per_result"],
        "latency_p95_added_ms": ours["latency_ms"]["p95"] - baseline["latency_ms"]["p95"],
        "latency_p99_added_ms": ours["latency_ms"]["p99"] - baseline["latency_ms"]["p99"],
        "memory_added_bytes": ours["memory_bytes"] - baseline["memory_bytes"],
    }


def isolation_table(figures: Mapping[str, Any]) -> str:
    """Text for the terminal."""
    rows = []
    for isolation, summary in figures["isolation"].items():
        latency = summary["latency_ms"]
        rows.append([isolation, f"{summary['results_hz']:.1f}", f"{latency['p50']:.1f}", f"{latency['p95']:.1f}",
                     f"{latency['p99']:.1f}", f"{summary['cpu_cores']:.2f}", f"{summary['cpu_ms_per_result']:.2f}",
                     f"{summary['memory_bytes'] / _MIB:.0f}"])  # fmt: skip
    header = ["isolation", "results/s", "p50 ms", "p95 ms", "p99 ms", "cores", "CPU ms per result", "memory MiB"]
    ratios = figures["process_over_none"]
    return "\n".join(
        [
            table(header, rows),
            f"images for {figures['sent_results_hz']:g} results/s were sent; {figures['repeats']} runs of "
            f"{figures['seconds']:g} s each",
            f"process compared with none: CPU per result x {ratios['cpu_ms_per_result']:.3f}, p95 "
            f"{ratios['latency_p95_added_ms']:+.1f} ms, p99 {ratios['latency_p99_added_ms']:+.1f} ms, memory "
            f"{ratios['memory_added_bytes'] / _MIB:+.0f} MiB",
        ]
    )
