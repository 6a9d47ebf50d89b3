"""The computer, and its figures: table for the terminal, plot, and files in the format of NVIDIA's ros2_benchmark."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.utilities import get_rmw_implementation_identifier

from multi_dnn_ros.benchmark.observation import Floats
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import table, write_json
from multi_dnn_ros.planning.fit import three_digits
from multi_dnn_ros.profiling.layer_profile import write_figure
from multi_dnn_ros.ros.board import text_of

_MIB = 1 << 20
#: Heading, and value of a trial at the highest rate, in the order of the table.
_FIGURES: tuple[tuple[str, Callable[[Mapping[str, Any]], float | None]], ...] = (
    ("highest rate per camera, Hz", lambda it: it["rate_hz"]),
    ("results per second", lambda it: it["results_hz"]),
    ("latency p50, ms", lambda it: (it["latency_ms"] or {}).get("p50")),
    ("latency p95, ms", lambda it: (it["latency_ms"] or {}).get("p95")),
    ("latency p99, ms", lambda it: (it["latency_ms"] or {}).get("p99")),
    ("CPU cores busy", lambda it: it["cpu_cores"]),
    ("CPU time per result, ms", lambda it: it["cpu_ms_per_result"]),
    ("memory, MiB", lambda it: it["memory_bytes"] / _MIB),
    ("GPU memory, MiB", lambda it: None if it["gpu_memory_bytes"] is None else it["gpu_memory_bytes"] / _MIB),
    ("power, W", lambda it: it["power_w"]),
    ("highest temperature, °C", lambda it: it["temperature_c"]),
)  # fmt: skip
_RATE, _LATENCIES = "#1f6f8b", (("p99", "#a9d0de"), ("p95", "#5ba3b8"), ("p50", "#1f6f8b"))


def board_table(mixes: Mapping[str, Mapping[str, Any]], max_rate_hz: float) -> str:
    """Text for the terminal: a column per mix; figures that no mix has are left out; below, what limits the figures."""
    measured = {name: mix["at_highest"] for name, mix in mixes.items() if mix["at_highest"] is not None}
    rows = []
    for heading, value in _FIGURES:
        values = [value(trial) for trial in measured.values()]
        if any(each is not None for each in values):
            rows.append([heading, *("-" if each is None else three_digits(each) for each in values)])
    if measured:
        rows.append(["missing results", *(f"{it['drop_share']:.1%}" for it in measured.values())])
    lines = [table(["figure", *measured], rows)] if measured else []
    for name, mix in mixes.items():
        trial = mix["at_highest"]
        if mix["error"]:
            lines.append(f"{name}: failed: {mix['error']}")
        elif trial is None:
            tried = min((it["rate_hz"] for it in mix["trials"]), default=None)
            lines.append(f"{name}: not served at {tried:.3g} Hz, the lowest rate that there was time for" if tried
                         else f"{name}: not measured")  # fmt: skip
        else:
            if trial["rate_hz"] >= max_rate_hz:
                lines.append(f"{name}: {max_rate_hz:g} Hz is the highest rate that was tried; --max-rate raises it")
            lines += [f"{name}: {count} results are missing: {reason}" for reason, count in trial["dropped"].items()]
            lines += [f"{name}: {part} was throttled: {reason}" for part, reason in trial["throttled"].items()]
    return "\n".join(lines)


def plot_board(mixes: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Write a PNG: highest rate and latency of each mix."""
    with optional("a picture"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(9.0, 1.5 + 0.9 * max(2, len(mixes))), layout="constrained")
    rates, latencies = figure.subplots(1, 2)
    for position, mix in enumerate(mixes.values()):
        trial = mix["at_highest"]
        rate = trial["rate_hz"] if trial is not None else 0.0
        rates.barh(position, rate, color=_RATE, height=0.6)
        rates.text(rate, position, f" {rate:.3g}" if trial is not None else " none", va="center")
        for name, color in _LATENCIES if trial is not None and trial["latency_ms"] else ():
            value = trial["latency_ms"][name]
            latencies.barh(position, value, color=color, height=0.6, label=name if position == 0 else None)
    names = [Path(name).name[:24].replace("$", r"\$") for name in mixes]  # two dollar signs would make a formula
    for axes, labels in ((rates, names), (latencies, [""] * len(names))):
        axes.set_yticks(range(len(names)), labels)
        axes.invert_yaxis()
        axes.margins(x=0.2)
    rates.set(xlabel="highest rate, Hz per camera")
    latencies.set(xlabel="latency at this rate, ms")
    if latencies.patches:
        latencies.legend(fontsize="small")
    write_figure(path, figure)


def write_ros2_benchmark(
    mixes: Mapping[str, Mapping[str, Any]], output: Path, metadata: Mapping[str, Any]
) -> list[Path]:
    """Write a file per mix with a highest rate beside `output`, as NVIDIA's ros2_benchmark writes them.

    The metrics are of the stream (DNN on camera) with the fewest results. Utilization of the CPU is in percent of all
    cores, of the node with its engine processes. metadata: of the run and the machine.
    """
    written = []
    for name, mix in mixes.items():
        trial = mix["at_highest"]
        if trial is None or not trial["ros2_benchmark"]:
            continue
        cores = metadata["machine"]["cores"]
        content = {
            **trial["ros2_benchmark"],
            "ResourceMetrics.MEAN_OVERALL_CPU_UTILIZATION": 100.0 * trial["cpu_cores"] / cores,
            "BenchmarkMetadata.PEAK_THROUGHPUT_PREDICTION": trial["rate_hz"],
            "metadata": {"Benchmark Name": f"multi_dnn_ros {name}", **metadata},
        }
        written.append(output.with_name(f"{output.stem}_{Path(name).stem}_ros2_benchmark.json"))
        write_json(written[-1], content)
    return written


def ros2_benchmark_metrics(times_s: Floats, latencies_ms: Floats, rate_hz: float, frames: float) -> dict[str, float]:
    """The metrics of one stream under the names, and with the definitions, of NVIDIA's ros2_benchmark.

    times_s, latencies_ms: of each result, at least one. Rates in Hz, times in ms. The jitter is the absolute difference
    of consecutive times between results; it needs three results.
    """
    duration_s = times_s[-1] - times_s[0]
    metrics: dict[str, Any] = {
        "RECEIVED_DURATION": 1e3 * duration_s,
        "MEAN_PLAYBACK_FRAME_RATE": rate_hz,
        "MEAN_FRAME_RATE": len(times_s) / duration_s if duration_s > 0.0 else 0.0,
        "NUM_MISSED_FRAMES": max(0, round(frames) - len(times_s)),
        "NUM_FRAMES_SENT": round(frames),
        "FIRST_SENT_RECEIVED_LATENCY": latencies_ms[0],
        "LAST_SENT_RECEIVED_LATENCY": latencies_ms[-1],
        "MAX_LATENCY": latencies_ms.max(),
        "MIN_LATENCY": latencies_ms.min(),
        "MEAN_LATENCY": latencies_ms.mean(),
    }
    if len(times_s) > 2:
        jitter = 1e3 * np.abs(np.diff(times_s, 2))
        of = {"MAX": jitter.max(), "MIN": jitter.min(), "MEAN": jitter.mean(), "STD_DEV": jitter.std()}
        metrics |= {f"{name}_JITTER": value for name, value in of.items()}
    return {f"BasicPerformanceMetrics.{name}": float(value) for name, value in metrics.items()}


def describe_board(device: str, root: Path = Path("/")) -> dict[str, str]:
    """Properties of the computer that the figures depend on, besides those of every result: hardware (of a
    single-board computer), power mode (of a Jetson, as its driver stores it), CPU governor, ROS runtime. root: /, or a
    copy of its files.
    """
    return {
        "device": device,
        "runtime": f"ROS 2 {os.environ.get('ROS_DISTRO', '')} {get_rmw_implementation_identifier()}",
        "hardware": text_of(root / "proc/device-tree/model").rstrip("\0"),
        "power_mode": text_of(root / "var/lib/nvpmodel/status"),
        "governor": text_of(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    }
