"""A plot of slow-downs over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure

#: Points of one job: (minutes, slow-down).
Points = Sequence[tuple[float, float]]
#: With more jobs than this, all have one colour and there is no legend. Matplotlib's default cycle has ten colours.
_MAX_NAMED = 10
#: Labelled values within each power of ten: slow-downs are mostly below 10, where powers of ten alone say little.
_TICKS = (1.0, 2.0, 3.0, 5.0)


def write_slow_down_plot(path: Path, title: str, panels: Mapping[str, Mapping[str, Points]]) -> None:
    """Write a PNG with one panel per name, each with a line per job. Raises MissingExtra without matplotlib."""
    with optional("a plot of slow-downs"):
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    names = list(dict.fromkeys(job for jobs in panels.values() for job in jobs))
    colours = {job: f"C{k}" for k, job in enumerate(names)} if len(names) <= _MAX_NAMED else {}
    figure = Figure(figsize=(4.4 * len(panels) + 1.4, 4.2), layout="constrained")
    row = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (name, jobs) in zip(row, panels.items(), strict=True):
        for job, points in jobs.items():
            style = {"color": colours[job]} if colours else {"color": "C0", "alpha": 0.4, "linewidth": 0.8}
            if len(points) == 1:  # a line of one point would not be seen
                style["marker"] = "o"
            axes.plot([at for at, _ in points], [value for _, value in points], drawstyle="steps-post", **style)
        axes.set_title(name)
        axes.set_xlabel("minutes")
        axes.grid(axis="y", alpha=0.3)
    row[0].set_ylabel("predicted slow-down")
    row[0].set_yscale("log")
    row[0].yaxis.set_major_locator(LogLocator(subs=_TICKS))
    row[0].yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    row[0].yaxis.set_minor_formatter(NullFormatter())
    if colours:
        handles = [Line2D([], [], color=colour) for colour in colours.values()]
        figure.legend(handles, list(colours), loc="outside right upper", fontsize="small")
    figure.suptitle(title)
    write_figure(path, figure)
