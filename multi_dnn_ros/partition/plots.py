"""Plots of tables, plans and runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure
from multi_dnn_ros.partition.run import BatchRun
from multi_dnn_ros.planning.batch_plan import Plan
from multi_dnn_ros.planning.batch_table import BatchTable

#: (unit, images, begin ms, end ms)
Bar = tuple[str, int, float, float]


def plan_bars(plan: Plan) -> list[Bar]:
    """A bar for every unit with work, from 0 to its predicted end."""
    return [(name, count, 0.0, plan.ms[name]) for name, count in plan.images.items() if count]


def run_bars(run: BatchRun) -> list[Bar]:
    """A bar for every share of the round of median length."""
    ordered = sorted(run.rounds, key=lambda shares: max(share.end_ms for share in shares))
    return [(share.unit, share.count, share.begin_ms, share.end_ms) for share in ordered[(len(ordered) - 1) // 2]]


def write_gantt(path: Path, title: str, groups: Mapping[str, Sequence[Bar]]) -> None:
    """Write a PNG with a row per group and unit, and a bar per share. Raises MissingExtra without matplotlib."""
    with optional("a Gantt chart"):
        from matplotlib.figure import Figure

    lines = [(group, index, bar) for index, (group, bars) in enumerate(groups.items()) for bar in bars]
    figure = Figure(figsize=(9, 1.2 + 0.5 * len(lines)), layout="constrained")
    axes = figure.subplots()
    for row, (_, index, (_, images, begin, end)) in enumerate(lines):
        axes.barh(row, end - begin, left=begin, color=f"C{index}")
        axes.text(begin + (end - begin) / 2, row, f"{images}", ha="center", va="center", color="white")
    axes.set_yticks(range(len(lines)), [f"{bar[0]} ({group})" for group, _, bar in lines])
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.set_title(f"{title}: time and number of images of each unit")
    write_figure(path, figure)


def write_table_plot(path: Path, tables: Iterable[BatchTable]) -> None:
    """Write a PNG: total time with quartiles, and images per second, by batch size. Raises MissingExtra without
    matplotlib.
    """
    with optional("a plot of a table"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    title = ""
    for table in tables:
        title = table.model
        rows = [(row.batch, row.total) for row in table.measured if row.total is not None]
        sizes = [batch for batch, _ in rows]
        medians = [total.p50 for _, total in rows]
        (line,) = left.plot(sizes, medians, marker=".", label=table.unit)
        left.fill_between(sizes, [total.p25 for _, total in rows], [total.p75 for _, total in rows],
                          color=line.get_color(), alpha=0.3)  # fmt: skip
        right.plot(sizes, [1e3 * batch / ms for batch, ms in zip(sizes, medians, strict=True) if ms], marker=".",
                   label=table.unit)  # fmt: skip
    for axes, what in ((left, "ms per batch"), (right, "images per second")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("batch size")
        axes.set_ylabel(what)
        axes.legend()
    figure.suptitle(title)
    write_figure(path, figure)
