"""Plots of a board's figures, for its page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from multi_dnn_ros.benchmark.board.record import BoardRecord, MixRecord, SensorSample
from multi_dnn_ros.benchmark.board.search import DROP_LIMIT
from multi_dnn_ros.common.extras import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SERVED, _NOT_SERVED, _LATENCY = "#1f6f8b", "#c0392b", ("#a9d0de", "#5ba3b8", "#1f6f8b")
_WIDTH = 7.0  # inches
#: Maximum length of a mix's name.
_MAX_NAME = 24
#: Names of mixes that begin closer together than this share of the run would overlap; only the first is written.
_MIN_DISTANCE = 0.03


def plot_highest(record: BoardRecord) -> Figure | None:
    """Highest rate of each mix and its latency at this rate; None if no mix has a highest rate."""
    mixes = {name: mix for name, mix in record.mixes.items() if mix.at_highest is not None}
    if not mixes:
        return None
    figure, (rates, latencies) = _figure(1.2 + 0.9 * len(mixes), 2)
    for position, mix in enumerate(mixes.values()):
        rate = mix.highest_hz or 0.0
        rates.barh(position, rate, color=_SERVED, height=0.6)
        rates.text(rate, position, f" {rate:.3g}", va="center")
        latency = mix.at_highest.latency_ms if mix.at_highest is not None else None
        for number, name in enumerate(("p99", "p95", "p50")):
            value = getattr(latency, name) if latency is not None else 0.0
            latencies.barh(position, value, color=_LATENCY[number], height=0.6, label=name if position == 0 else None)
    for axes in (rates, latencies):
        axes.set_yticks(range(len(mixes)), [_shown(name) for name in mixes] if axes is rates else [""] * len(mixes))
        axes.invert_yaxis()
        axes.margins(x=0.15)
    rates.set(xlabel="highest rate, Hz per camera")
    latencies.set(xlabel="latency at this rate, ms", xlim=(0, None))
    latencies.legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    return figure


def plot_search(mix: MixRecord) -> Figure | None:
    """Missing results against the rate; None without trials."""
    if not mix.trials:
        return None
    figure, (axes,) = _figure(2.6, 1)
    for passed, color, text in ((True, _SERVED, "served"), (False, _NOT_SERVED, "not served")):
        trials = [trial for trial in mix.trials if trial.passed == passed]
        axes.plot([trial.rate_hz for trial in trials], [100.0 * trial.drop_share for trial in trials], "o", color=color,
                  label=text)  # fmt: skip
    axes.axhline(100.0 * DROP_LIMIT, color="#888", linewidth=1.0, label=f"{DROP_LIMIT:.0%}")
    axes.set_xscale("log")
    rates = [trial.rate_hz for trial in mix.trials]
    axes.set_xlim(min(rates) / 1.3, max(rates) * 1.3)
    ticks = _spread([*rates])
    axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel="rate, Hz per camera", ylabel="missing results, %", ylim=(-3, 103))
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def plot_timeline(record: BoardRecord) -> Figure | None:
    """Power, temperature and clocks over the run; None without sensors."""
    quantities = [
        (label, [(each.at_s, float(value)) for each in record.timeline if (value := getattr(each, name)) is not None])
        for label, name in (("power, W", "power_w"), ("highest\ntemperature, °C", "temperature_c"),
                            ("lowest clock / limit", "clock_share"))
    ]  # fmt: skip
    quantities = [(label, points) for label, points in quantities if points]
    if not quantities:
        return None
    figure, all_axes = _figure(1.0 + 1.6 * len(quantities), len(quantities), stacked=True)
    for axes, (label, points) in zip(all_axes, quantities, strict=True):
        axes.plot([at_s for at_s, _ in points], [value for _, value in points], color=_SERVED)
        axes.set(ylabel=label)
        for each in record.timeline:
            if each.throttled:
                axes.axvspan(each.at_s - 1.0, each.at_s, color=_NOT_SERVED, alpha=0.3, linewidth=0)
    phases = _phases(record.timeline)
    for begin_s, name in _without_overlap(phases, _MIN_DISTANCE * record.timeline[-1].at_s):
        all_axes[0].annotate(_shown(name), (begin_s, 1.02), xycoords=("data", "axes fraction"), fontsize="small",
                          rotation=30, rotation_mode="anchor")  # fmt: skip
    for begin_s, _ in phases:
        for axes in all_axes:
            axes.axvline(begin_s, color="#bbb", linewidth=0.8)
    all_axes[-1].set(xlabel="time, s")
    return figure


def _phases(timeline: Sequence[SensorSample]) -> list[tuple[float, str]]:
    """(begin in seconds of measuring time, name) of each mix."""
    found = []
    before = ""
    for each in timeline:
        if each.mix and each.mix != before:
            found.append((each.at_s, each.mix))
            before = each.mix
    return found


def _without_overlap(phases: Sequence[tuple[float, str]], min_s: float) -> list[tuple[float, str]]:
    """The phases that begin at least `min_s` after the previous one that is kept."""
    found: list[tuple[float, str]] = []
    for begin_s, name in phases:
        if not found or begin_s >= found[-1][0] + min_s:
            found.append((begin_s, name))
    return found


def _shown(name: str) -> str:
    """The name of a mix for a plot. A path, which would leave no room for the plot, is shortened to the file's name;
    matplotlib takes text between two dollar signs for a formula.
    """
    short = Path(name).name
    short = short if len(short) <= _MAX_NAME else f"{short[: _MAX_NAME - 1]}…"
    return short.replace("$", r"\$")


def _spread(values: Sequence[float]) -> list[float]:
    """The values that are far enough apart for their labels."""
    ticks: list[float] = []
    for value in sorted(set(values)):
        if not ticks or value > 1.15 * ticks[-1]:
            ticks.append(value)
    return ticks


def _figure(height: float, count: int, stacked: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes beside or above each other. height: inches. Raises MissingExtra without matplotlib."""
    with optional("a plot"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    rows, columns = (count, 1) if stacked else (1, count)
    return figure, list(figure.subplots(rows, columns, squeeze=False, sharex=stacked).flat)
