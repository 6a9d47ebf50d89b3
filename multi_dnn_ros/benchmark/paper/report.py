"""The paper's figures from the results: Fig. 5 and 6, and one of the branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.profiling.layer_profile import write_figure


def plot_sets(sets: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Write a PNG like Fig. 5 and 6: a part per set and network, a bar per condition."""
    groups = [
        (f"{name}, {network}", {condition: it["ms"][network] for condition, it in results["summary"].items()})
        for name, results in sets.items()
        for network in dict.fromkeys(results["dnns"])
    ]
    _plot(groups, "time of one inference while all run, ms: median, line to p99", path)


def plot_branches(networks: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG: a part per network, a bar per condition."""
    groups = [(each["network"].removeprefix("torchvision:"), each["ms"]) for each in networks]
    _plot(groups, "time of one inference, ms: median, line to p99", path)


def _plot(groups: Sequence[tuple[str, Mapping[str, Mapping[str, float]]]], title: str, path: Path) -> None:
    with optional("a picture"):
        from matplotlib.figure import Figure

    columns = max(1, min(4, len(groups)))
    rows = max(1, -(-len(groups) // columns))
    count = max((len(bars) for _, bars in groups), default=1)
    figure = Figure(figsize=(3.4 * columns + 1.0, 0.9 + (1.0 + 0.24 * count) * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, (group, bars) in zip(axes, groups, strict=False):
        for position, ms in enumerate(bars.values()):
            axis.barh(position, ms["p50"], color=f"C{position % 10}")
            axis.plot([ms["p50"], ms["p99"]], [position, position], color="black", linewidth=1)
            axis.text(ms["p50"], position, f" {ms['p50']:.3g}", va="center", fontsize=8)
        axis.set_yticks(range(len(bars)), list(bars), fontsize=8)
        axis.invert_yaxis()  # the baseline on top
        axis.set(title=group, xlim=(0, None))
    for axis in axes[len(groups) :]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=10)
    write_figure(path, figure)
