"""Plot of a soak over time: latency, results, memory, file descriptors and threads, with the events marked."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from multi_dnn_ros.benchmark.soak import plan
from multi_dnn_ros.benchmark.soak.run import SoakRun
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure

_BINS = 120
_MARKED = {
    plan.KILL_ENGINE: ("engine killed", "tab:red"),
    plan.KILL_CAMERA: ("camera killed", "tab:orange"),
    plan.SWAP: ("model swapped", "tab:green"),
}


def plot_soak(run: SoakRun, path: Path) -> None:
    """Write a PNG. Times are in minutes."""
    with optional("a picture"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 10), layout="constrained")
    axes = figure.subplots(5, 1, sharex=True, height_ratios=(2, 1, 2, 1, 1))
    latency, rate, memory, files, threads = axes
    edges = np.linspace(run.begin_s, run.end_s, _BINS + 1)
    minutes = ((edges[1:] + edges[:-1]) / 2 - run.begin_s) / 60.0
    found = [
        [value for stream in run.receipts.values() for value in stream.between(first, last)]
        for first, last in pairwise(edges)
    ]
    latency.plot(minutes, [np.percentile(values, 95) if values else np.nan for values in found], label="p95")
    latency.plot(minutes, [np.percentile(values, 50) if values else np.nan for values in found], label="p50")
    latency.set(ylabel="stamp to receipt (ms)", title=_title(run))
    latency.set_ylim(bottom=0)
    latency.legend(loc="upper right")
    rate.plot(minutes, [len(values) / (edges[1] - edges[0]) for values in found], color="black")
    rate.set(ylabel="results/s")
    rate.set_ylim(bottom=0)
    at = [(sample.at_s - run.begin_s) / 60.0 for sample in run.samples]
    memory.plot(at, [sample.memory_bytes / 2**20 for sample in run.samples], label="node and engine processes")
    memory.plot(at, [sample.node.anonymous_bytes / 2**20 for sample in run.samples], label="node")
    memory.plot(at, [sample.shared_bytes / 2**20 for sample in run.samples], label="shared")
    memory.set(ylabel="memory (MiB)")
    memory.set_ylim(bottom=0)
    memory.legend(loc="upper right")
    for axis, name in ((files, "files"), (threads, "threads")):
        axis.plot(at, [getattr(sample.node, name) for sample in run.samples], label="node")
        axis.plot(at, [getattr(sample.engines, name) for sample in run.samples], label="engine processes")
        axis.set(ylabel=name)
        axis.set_ylim(bottom=0)
        axis.legend(loc="upper right")
    threads.set(xlabel="time (min)")
    for axis in axes:
        _mark(axis, run)
    figure.legend(
        handles=[axes[0].plot([], [], color=color, linestyle=":", label=text)[0] for text, color in _MARKED.values()],
        loc="outside lower center",
        ncols=len(_MARKED),
    )
    write_figure(path, figure)


def _mark(axis: Any, run: SoakRun) -> None:
    """Mark the events by dotted lines, and shade the compared windows."""
    for at_s, action in run.events:
        if action in _MARKED:
            axis.axvline(at_s / 60.0, color=_MARKED[action][1], linestyle=":", linewidth=0.8)
    for window in run.figures["windows"].values():
        axis.axvspan(window["begin_s"] / 60.0, window["end_s"] / 60.0, color="black", alpha=0.06, linewidth=0)


def _title(run: SoakRun) -> str:
    figures = run.figures
    return f"{figures['device']}, {figures['runtime']}: {'passed' if figures['passed'] else 'FAILED'}"
