"""Plots curves of accuracy over MACs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure
from multi_dnn_ros.training.setup import MAIN

#: Maximum loss of accuracy, compared with the original of the same file, for a point to count as accurate.
MAX_ACCURACY_LOSS = 0.010
_COLOURS = {"ratio": "#8a97a8", "energy": "#3f7fbf", "budget": "#d1603d"}
_COLUMNS = 3


def plot(path: Path, contents: Sequence[Mapping[str, Any]]) -> None:
    """Accuracy over the removed share of MACs: one panel per file of `curve`, one line per policy, starting at the
    original.
    """
    with optional("a picture"):
        from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(contents))
    rows = math.ceil(len(contents) / columns)
    figure = Figure(figsize=(1.0 + 4.2 * columns, 3.6 * rows), layout="constrained")
    for number, content in enumerate(contents, start=1):
        _panel(figure.add_subplot(rows, columns, number), content)
    write_figure(path, figure)


def _panel(axes: Any, content: Mapping[str, Any]) -> None:
    main = MAIN["classes"]
    whole = content["original"]["scores"][main]
    axes.axhline(whole, color="#444444", linewidth=1, label="original")
    axes.axhspan(whole - MAX_ACCURACY_LOSS, whole, color="#444444", alpha=0.12, label="within 1.0 point")
    for policy in dict.fromkeys(row["policy"] for row in content["points"]):
        points = sorted((row["macs_cut"], row["scores"][main]) for row in content["points"]
                        if row["policy"] == policy and "scores" in row)  # fmt: skip
        if points:
            points.insert(0, (0.0, whole))
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=_COLOURS.get(policy), label=policy)
    axes.set_xlabel("share of the MACs removed")
    axes.set_ylabel(f"{main} after retraining")
    name = content["settings"]["model"].partition(":")[2]
    epochs = content["settings"]["retraining"]["epochs"]
    axes.set_title(f"{name} on {content['data'].partition(':')[0]}, retrained for {epochs} epochs", fontsize=10)
    axes.set_xlim(0.0, 1.0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
