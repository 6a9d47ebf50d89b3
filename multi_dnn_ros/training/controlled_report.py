"""Table, JSON and plot of a training that was repeated with several seeds or had a control."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure, write_json
from multi_dnn_ros.training.controlled import Controlled, Spread

JSON_NAME, PLOT = "retrain.json", "retrain.png"
_COLOURS = ("#d1603d", "#8a97a8")


def comparison_table(result: Controlled) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: one row per score on the test part."""
    count = len(result.seeds)
    header = ["test part", "before", "after" if count == 1 else f"after, {count} seeds", "change"]
    header += ["control after", "against control"] if result.control else []
    rows = []
    for name in result.runs[0].after:
        before, after, control = result.before(name), result.after(name), result.control_after(name)
        row = [name, f"{before:.4f}", str(after), f"{after.mean - before:+.4f}"]
        rows.append((*row, *((str(control), f"{after.mean - control.mean:+.4f}") if control is not None else ())))
    return tuple(header), rows


def write_report(folder: Path, model: str, control: str | None, result: Controlled, origin: Mapping[str, Any]) -> None:
    """Write retrain.json and retrain.png. origin: provenance and settings of the run. Raises MissingExtra without
    matplotlib, after the JSON is written.
    """
    content = {**origin, "model": model, "control_model": control, **result.provenance()}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / JSON_NAME, content)
    plot(folder / PLOT, model, control, result)


def plot(path: Path, model: str, control: str | None, result: Controlled) -> None:
    """Bars of the mean scores on the test part, a dot per seed."""
    with optional("a picture"):
        from matplotlib.figure import Figure

    names = list(result.runs[0].after)
    groups: list[tuple[str, list[Spread], list[list[float]]]] = [
        (f"{model}, retrained", [result.after(name) for name in names],
         [[run.after[name] for run in result.runs] for name in names])
    ]  # fmt: skip
    if result.control:
        spreads = [Spread.of([run.after[name] for run in result.control]) for name in names]
        groups.append((f"control: {control}", spreads, [[run.after[name] for run in result.control] for name in names]))
    figure = Figure(figsize=(2.5 + 1.8 * len(names), 4.0), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(groups)
    for k, (label, spreads, values) in enumerate(groups):
        positions = [x + (k - (len(groups) - 1) / 2) * width for x in range(len(names))]
        means, deviations = [each.mean for each in spreads], [each.deviation for each in spreads]
        axes.bar(positions, means, width * 0.9, yerr=deviations, capsize=4, color=_COLOURS[k], label=label)
        for x, dots in zip(positions, values, strict=True):
            axes.plot([x] * len(dots), dots, ".", color="black", markersize=5)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("score on the test part")
    axes.set_title(f"{len(result.seeds)} seeds: mean, standard deviation and single runs", fontsize=10)
    figure.legend(loc="outside lower center", fontsize=8)
    write_figure(path, figure)
