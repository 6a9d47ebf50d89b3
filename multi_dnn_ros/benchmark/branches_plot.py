"""Plot of `multi-dnn benchmark branches`: bars show each network's times relative to its serial baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure


def plot_branches(networks: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG. networks: results of measure_branches()."""
    with optional("a picture"):
        from matplotlib.figure import Figure

    conditions = list(dict.fromkeys(name for each in networks for name in each["over_serial"]))
    figure = Figure(figsize=(max(6.0, 1.3 * len(networks)) + 1.5, 4.5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(1, len(conditions))
    for number, condition in enumerate(conditions):
        positions = [index + width * (number - (len(conditions) - 1) / 2) for index in range(len(networks))]
        heights = [each["over_serial"].get(condition, 0.0) for each in networks]
        axes.bar(positions, heights, width, label=condition)
    axes.axhline(1.0, color="black", linewidth=1)
    labels = [
        f"{each['network'].removeprefix('torchvision:')}\n{each['ms']['serial']['p50']:.3g} ms" for each in networks
    ]
    axes.set_xticks(range(len(networks)), labels, rotation=30, ha="right", fontsize=8)
    axes.set(ylabel="median time / serial", title="Concurrent branches (below each name: serial time)")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", fontsize=8)
    write_figure(path, figure)
