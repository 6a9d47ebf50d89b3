"""Plots like the paper's Fig. 5 and 6: bars of the inference time, grouped by network, one bar per condition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure

#: condition -> its bar: (median, p95), ms
Bars = Mapping[str, tuple[float, float]]


def plot_results(content: Mapping[str, Any], path: Path) -> list[Path]:
    """Write PNGs: `path` with all sets of a single network (Fig. 5), and one next to it per mixed set (Fig. 6).

    Sets without a successful condition are omitted.
    """
    labels = {
        name: condition["label"]
        for set_results in content["sets"].values()
        for name, condition in set_results["conditions"].items()
    }
    settings = content["settings"]
    where = content["machine"]["gpu"] if settings["device"] != "cpu" else content["machine"]["cpu"]
    where += "" if settings["sms"] is None else f", {settings['sms']} SMs"
    figures: dict[Path, tuple[str, dict[str, Bars]]] = {}
    measured = {name: set_results for name, set_results in content["sets"].items() if set_results["summary"]}
    uniform = {name: set_results for name, set_results in measured.items() if len(set(set_results["dnns"])) == 1}
    if uniform:
        groups = {_title(set_results): _bars(set_results, set_results["dnns"][0]) for set_results in uniform.values()}
        figures[path] = (f"Several DNNs of one kind at once, {where}", groups)
    for name, set_results in measured.items():
        if name not in uniform:
            groups = {
                f"{network} ({set_results['dnns'].count(network)})": _bars(set_results, network)
                for network in dict.fromkeys(set_results["dnns"])
            }
            figures[path.with_stem(f"{path.stem}_{name}")] = (f"Different DNNs at once, {where}", groups)
    for file, (title, groups) in figures.items():
        _draw(file, title, groups, labels)
    return list(figures)


def _title(set_results: Mapping[str, Any]) -> str:
    return f"{set_results['dnns'][0]} x {len(set_results['dnns'])}"


def _bars(set_results: Mapping[str, Any], network: str) -> Bars:
    return {
        name: (summary["ms"][network]["p50"], summary["ms"][network]["p95"])
        for name, summary in set_results["summary"].items()
    }


def _draw(path: Path, title: str, groups: Mapping[str, Bars], labels: Mapping[str, str]) -> None:
    """One axis per group, because times differ by an order of magnitude; bars from 0, line up to p95."""
    with optional("a picture"):
        from matplotlib import colormaps
        from matplotlib.figure import Figure

    names = [name for name in labels if any(name in bars for bars in groups.values())]
    columns = min(4, len(groups))
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(max(5.0, 3.2 * columns), 0.9 + (1.0 + 0.24 * len(names)) * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
    colors = {name: colormaps["tab20"](index % 20) for index, name in enumerate(labels)}
    for axis, (group, bars) in zip(axes.flat, groups.items(), strict=False):
        top = max(p95 for _, p95 in bars.values())
        for position, name in enumerate(names):
            if name in bars:
                median, p95 = bars[name]
                axis.barh(position, median, color=colors[name])
                axis.plot([median, max(median, p95)], [position, position], color="black", linewidth=1)
                axis.text(max(median, p95) + 0.02 * top, position, f"{median:.3g}", va="center", fontsize=8)
        axis.set(title=group, xlabel="ms", xlim=(0, 1.2 * top), yticks=range(len(names)))
        axis.set_yticklabels([labels[name] for name in names], fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in list(axes.flat)[len(groups) :]:
        axis.set_visible(False)
    axes[0, 0].invert_yaxis()  # the baseline on top; the axes share it
    figure.suptitle(f"{title}\ntime of one inference while all run: median, line to p95", fontsize=10)
    write_figure(path, figure)
