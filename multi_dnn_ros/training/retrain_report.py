"""The report of a training: a JSON file, and a plot of loss and score by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure, write_json

JSON_NAME, PLOT = "retrain.json", "retrain.png"


def write_report(folder: Path, content: Mapping[str, Any]) -> None:
    """Write retrain.json and retrain.png into `folder`, which is created. content: with the settings and the outcome of
    the training under "training". Raises MissingExtra without matplotlib, after the JSON is written.
    """
    write_json(folder / JSON_NAME, content)
    with optional("a picture"):
        from matplotlib.figure import Figure

    training = content["training"]
    history, best = training["history"], training["choice_scores"]
    main = next(iter(best))
    figure = Figure(figsize=(7.0, 3.2), layout="constrained")
    panels = (("loss", "loss", None), (f"{main}, validation part", main, best[main]))
    for column, (title, name, line) in enumerate(panels, 1):
        axes = figure.add_subplot(1, 2, column)
        points = [(row["epoch"] + 1, row[name]) for row in history if name in row]
        axes.plot([epoch for epoch, _ in points], [value for _, value in points], ".-")
        if line is not None:
            axes.axhline(line, linestyle=":", color="grey")
        axes.set_xlabel("epoch")
        axes.set_title(title, fontsize=9)
    figure.suptitle(str(content["model"])[-80:], fontsize=10)
    write_figure(folder / PLOT, figure)
