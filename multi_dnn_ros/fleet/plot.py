"""A plot of slow-downs over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure

#: Points of one job: (minutes, slow-down).
Points = Sequence[tuple[float, float]]
#: With more jobs than this, all have one colour and there is no legend.
_MAX_NAMED = 12


def write_slow_down_plot(path: Path, title: str, panels: Mapping[str, Mapping[str, Points]]) -> None:
    """Write a PNG with one panel per name, each with a line per job. Raises MissingExtra without matplotlib."""
    with optional("a plot of slow-downs"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(panels), 4.2), layout="constrained")
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (name, jobs) in zip(row, panels.items(), strict=True):
        few = len(jobs) <= _MAX_NAMED
        for job, points in jobs.items():
            style = {"label": job} if few else {"color": "C0", "alpha": 0.4, "linewidth": 0.8}
            axes.plot([at for at, _ in points], [value for _, value in points], drawstyle="steps-post", **style)
        axes.set_title(name)
        axes.set_xlabel("minutes")
        if few and jobs:
            axes.legend(fontsize="small")
    row[0].set_ylabel("predicted slow-down")
    row[0].set_yscale("log")
    figure.suptitle(title)
    write_figure(path, figure)
