"""The figures of a soak as text and as a plot."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import counts_text, table, write_figure

#: Maximum length of a note in the table.
_MAX_NOTE = 100
_PLOTTED = (
    (("p95_ms", "p50_ms"), "stamp to receipt (ms)"),
    (("results_per_s",), "results/s"),
    (("memory_mib",), "memory (MiB)"),
    (("files", "threads"), "files, threads"),
)
_MARKED = {"kill engine": "tab:red", "kill camera": "tab:orange", "swap": "tab:green"}


def soak_table(figures: Mapping[str, Any]) -> str:
    """Text for the terminal: the accounts, then the verdicts, with what failed in the last line."""
    accounts = [
        [name, *(str(counts[key]) for key in ("offered", "published", "observed")), counts_text(counts["dropped"])]
        for name, counts in figures["streams"].items()
    ]
    verdicts = [
        [
            verdict["name"],
            "none" if verdict["value"] is None else f"{verdict['value']:.3g} {verdict['unit']}".strip(),
            f"{verdict['limit']} {verdict['unit']}".strip(),
            "passed" if verdict["passed"] else "FAILED",
            textwrap.shorten(verdict["note"], _MAX_NOTE, placeholder=" …"),
        ]
        for verdict in figures["verdicts"]
    ]
    windows = " and ".join(f"{it['begin_s']:g} to {it['end_s']:g} s" for it in figures["windows"].values())
    actions = "; ".join(f"{action}: {counts_text(counts)}" for action, counts in figures["actions"].items())
    failed = [verdict["name"] for verdict in figures["verdicts"] if not verdict["passed"]]
    return "\n".join(
        [
            table(["stream", "offered", "published", "observed", "dropped"], accounts),
            table(["verdict", "figure", "limit", "", "note"], verdicts),
            f"windows compared: {windows}; rounds of {figures['round_s']:g} s; actions: {actions}",
            "passed" if not failed else f"FAILED: {'; '.join(failed)}",
        ]
    )


def plot_soak(figures: Mapping[str, Any], path: Path) -> None:
    """Write a PNG of the figures of each minute, with kills and swaps marked and the compared windows shaded."""
    with optional("a picture"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 9), layout="constrained")
    axes = figure.subplots(len(_PLOTTED), 1, sharex=True)
    minutes = figures["minutes"]
    for axis, (names, label) in zip(axes, _PLOTTED, strict=True):
        for name in names:
            values = [float("nan") if minute[name] is None else minute[name] for minute in minutes]
            axis.plot([minute["minute"] - 0.5 for minute in minutes], values, marker=".", label=name)
        axis.set(ylabel=label)
        axis.set_ylim(bottom=0)
        axis.legend(loc="upper right")
        for event in figures["events"]:
            if event["action"] in _MARKED and event["result"] == "done":
                axis.axvline(event["begun_s"] / 60.0, color=_MARKED[event["action"]], linestyle=":", linewidth=0.8)
        for window in figures["windows"].values():
            axis.axvspan(window["begin_s"] / 60.0, window["end_s"] / 60.0, color="black", alpha=0.06, linewidth=0)
    marks = ", ".join(f"{color.removeprefix('tab:')}: {action}" for action, color in _MARKED.items())
    axes[0].set(title=f"{figures['device']}, {figures['runtime']} ({marks})")
    axes[-1].set(xlabel="time (min)")
    write_figure(path, figure)
