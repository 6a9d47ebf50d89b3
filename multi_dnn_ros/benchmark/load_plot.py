"""Plot of a long run: latency of each camera and memory of the node over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from multi_dnn_ros.benchmark.load import LoadRun
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure

_BINS = 60


def plot_load(run: LoadRun, path: Path) -> None:
    """Write a PNG: p95 latency by camera in 60 steps, and resident memory."""
    with optional("a picture"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    edges = np.linspace(run.begin_s, run.end_s, _BINS + 1)
    middle = (edges[1:] + edges[:-1]) / 2 - run.begin_s
    for camera in dict.fromkeys(camera for _, camera in run.receipts):
        streams = [receipts for (_, name), receipts in run.receipts.items() if name == camera]
        bins = [
            [latency for receipts in streams for latency in receipts.between(*edges[index : index + 2])]
            for index in range(_BINS)
        ]
        p95 = [np.percentile(latencies, 95) if latencies else np.nan for latencies in bins]
        above.plot(middle, p95, label=camera)
    above.set(ylabel="stamp to receipt, p95 (ms)", title=_title(run))
    above.set_ylim(bottom=0)
    above.legend(title="camera", loc="lower right")
    samples = [s for s in run.samples if run.begin_s <= s.at_s <= run.end_s]
    below.plot([s.at_s - run.begin_s for s in samples], [s.resident_bytes / 2**20 for s in samples], color="black")
    below.set(xlabel="time (s)", ylabel="resident (MiB)")
    below.set_ylim(0, 1.2 * max(s.resident_bytes for s in samples) / 2**20)
    write_figure(path, figure)


def _title(run: LoadRun) -> str:
    flooding = ", one of them flooding" if run.figures["flood_ratio"] is not None else ""
    return f"{len(run.figures['cameras'])} cameras on {run.figures['device']}{flooding}"
