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

    conditions = sorted({name for each in networks for name in each["over_serial"]}, key=_kind_and_streams)
    figure = Figure(figsize=(max(6.0, 1.3 * len(networks)) + 1.5, 4.5), layout="constrained")
    axes = figure.subplots()
    # Networks may have been measured under different conditions: each has its bars side by side around its label.
    bars = [[name for name in conditions if name in each["over_serial"]] for each in networks]
    width = 0.8 / max([1, *map(len, bars)])
    for condition in conditions:
        shown = [index for index, names in enumerate(bars) if condition in names]
        offsets = [bars[index].index(condition) - (len(bars[index]) - 1) / 2 for index in shown]
        positions = [index + width * offset for index, offset in zip(shown, offsets, strict=True)]
        axes.bar(positions, [networks[index]["over_serial"][condition] for index in shown], width, label=condition)
    axes.axhline(1.0, color="black", linewidth=1)
    labels = [
        f"{each['network'].removeprefix('torchvision:')}\n{each['ms']['serial']['p50']:.3g} ms" for each in networks
    ]
    axes.set_xticks(range(len(networks)), labels, rotation=30, ha="right", rotation_mode="anchor", fontsize=8)
    axes.set(ylabel="median time / serial", title="Concurrent branches (below each name: serial time)")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", fontsize=8)
    write_figure(path, figure)


def _kind_and_streams(condition: str) -> tuple[str, int]:
    """Sort key of a condition such as "8 streams" or "inductor, 8 streams"."""
    kind, _, last = condition.rpartition(", ")
    streams = last.removesuffix(" streams")
    return (kind, int(streams)) if streams.isdecimal() else (condition, 1)
