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
        from matplotlib.ticker import LogLocator, ScalarFormatter

    figure = Figure(figsize=(4.4 * len(panels) + 1.4, 4.2), layout="constrained")
    row = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    colours: dict[str, str] = {}  # a job has the same colour in every panel, and one entry in the legend
    for axes, (name, jobs) in zip(row, panels.items(), strict=True):
        few = len(jobs) <= _MAX_NAMED
        for job, points in jobs.items():
            colour = colours.setdefault(job, f"C{len(colours)}") if few else "C0"
            style = {"color": colour, "label": job} if few else {"color": colour, "alpha": 0.4, "linewidth": 0.8}
            if few and len(points) == 1:  # a line of one point would not be seen
                style["marker"] = "o"
            axes.plot([at for at, _ in points], [value for _, value in points], drawstyle="steps-post", **style)
        axes.set_title(name)
        axes.set_xlabel("minutes")
    row[0].set_ylabel("predicted slow-down")
    row[0].set_yscale("log")
    row[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    row[0].yaxis.set_major_formatter(ScalarFormatter())
    row[0].yaxis.set_minor_formatter("")
    entries = {label: line for axes in row for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if entries:
        figure.legend(entries.values(), entries.keys(), loc="outside right upper", fontsize="small")
    figure.suptitle(title)
    write_figure(path, figure)
