"""Compares scores and costs of networks: as a table, as Markdown and as a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import table, with_change, write_figure, write_json, write_text
from multi_dnn_ros.training.data import Task
from multi_dnn_ros.training.scoring import MAIN

JSON_NAME, MARKDOWN_NAME, PLOT = "report.json", "report.md", "networks.png"
_FIRST, _OTHERS = "#8a97a8", "#d1603d"
#: Scores of our result kinds that are shown, in this order. The score of a class, such as `map50_car`, is only in JSON.
_SHOWN: dict[Task, tuple[str, ...]] = {
    "classes": ("top1", "top5"), "boxes": ("map50", "map"), "lanes": ("f1", "precision", "recall")
}  # fmt: skip


def rows_of(content: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of the table: one row per entry, changes relative to the first."""
    networks, task = content["networks"], content["task"]
    first = networks[0]
    sets = list(first["scores"])
    shown = _shown(networks, task)
    header = ["network", *(_score_name(name, score, sets) for name in sets for score in shown)]
    header += ["GMACs", "M parameters", "MB", *(_latency_name(entry) for entry in first["latency_ms"])]
    rows = []
    for network in networks:
        cells = [label(network)]
        cells += [_share(network["scores"][name].get(score)) for name in sets for score in shown]
        for key, scale in (("macs", 1e9), ("parameters", 1e6), ("file_bytes", 1e6)):
            cells.append(with_change(network[key] / scale, None if network is first else first[key] / scale))
        for own, other in zip(network["latency_ms"], first["latency_ms"], strict=True):
            cells.append(with_change(own["ms"], None if network is first else other["ms"]))
        rows.append(tuple(cells))
    return tuple(header), rows


def _shown(networks: Sequence[Mapping[str, Any]], task: Task) -> tuple[str, ...]:
    """Names of the scores to show: those of the task, unless a result kind of another package returns none of them;
    then further ones that it returns.
    """
    own = _SHOWN[task]
    returned = dict.fromkeys(name for network in networks for scores in network["scores"].values() for name in scores)
    further = [name for name in returned if name != "images" and name not in own]
    further = [name for name in further if not name.startswith(f"{MAIN[task]}_")]
    return (*(() if further and not any(name in returned for name in own) else own), *further)


def scored_images(content: Mapping[str, Any]) -> str:
    """A line with the number of images of each set that the scores are from."""
    counts = {name: scores["images"] for name, scores in content["networks"][0]["scores"].items()}
    texts = (f"{name} ({count} image{'s' if count != 1 else ''})" for name, count in counts.items())
    return f"Scored on the test part: {', '.join(texts)}."


def threshold_tables(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Title and table of the operating points of each network on each set; none if not requested."""
    tables = []
    for network in content["networks"]:
        for name, points in network.get("operating_points", {}).items():
            rows = [
                (
                    f"{point['threshold']:.2f}",
                    _share(point["precision"]),
                    _share(point["recall"]),
                    _share(point["false_per_image"]),
                )
                for point in points
            ]
            text = table(("score threshold", "precision", "recall", "false per image"), rows)
            tables.append((f"{label(network)} on {name}", text))
    return tables


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def label(network: Mapping[str, Any], *, short: bool = False, separator: str = ", ") -> str:
    """Name of a row or bar: the model and, after it, the backend that served it. short: without folder and suffix."""
    name = Path(network["model"]).stem if short else network["model"]
    served = network["served"]
    if served is None:
        return str(name)
    return f"{name}{separator}served: {served['backend']} {served['precision']}"


def write_report(folder: Path, content: Mapping[str, Any]) -> list[Path]:
    """Write JSON, Markdown and the plot atomically into `folder`, which is created."""
    write_json(folder / JSON_NAME, content)
    header, rows = rows_of(content)
    lines = [
        "# Networks side by side",
        "",
        f"`{content['command']}`",
        "",
        table(header, rows),
        "",
        scored_images(content),
        f"Versions: {json.dumps(content['versions'])}",
        "",
        f"![networks]({PLOT})",
    ]
    for title, text in threshold_tables(content):
        lines += ["", f"## {title}", "", text]
    write_text(folder / MARKDOWN_NAME, "\n".join(lines) + "\n")
    plot(folder / PLOT, content)
    return [folder / name for name in (JSON_NAME, MARKDOWN_NAME, PLOT)]


def plot(path: Path, content: Mapping[str, Any]) -> None:
    """Bars of MACs and of the main score, as in the paper's figures 3 and 4, and of the latencies."""
    with optional("a picture"):
        from matplotlib.figure import Figure

    networks, task = content["networks"], content["task"]
    names = [label(network, short=True, separator=",\n") for network in networks]
    shown = _shown(networks, task)
    main = MAIN[task] if MAIN[task] in shown else shown[0]
    panels: list[tuple[str, Sequence[float]]] = [("MACs, billions", [network["macs"] / 1e9 for network in networks])]
    panels += [
        (f"{main} on {name}", [network["scores"][name].get(main, 0.0) for network in networks])
        for name in networks[0]["scores"]
    ]
    panels += [
        (_latency_name(entry), [network["latency_ms"][k]["ms"] for network in networks])
        for k, entry in enumerate(networks[0]["latency_ms"])
    ]
    figure = Figure(figsize=(1.2 + 3.2 * len(panels), 1.4 + 0.42 * len(networks)), layout="constrained")
    for column, (title, values) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), column + 1)
        positions = range(len(networks))[::-1]
        bars = axes.barh(positions, values, 0.7, color=[_FIRST] + [_OTHERS] * (len(networks) - 1))
        axes.bar_label(bars, fmt="%.3g", padding=2, fontsize=8)
        axes.set_yticks(positions, names if column == 0 else [""] * len(names), fontsize=8)
        axes.set_xlim(0, max(values) * 1.2 or 1.0)
        axes.set_title(title[-48:], fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    write_figure(path, figure)


def _score_name(name: str, score: str, sets: Sequence[str]) -> str:
    return score if len(sets) == 1 else f"{score} ({name})"


def _latency_name(entry: Mapping[str, Any]) -> str:
    return "ms alone" if entry["instances"] == 1 else f"ms, {entry['instances']} at once"
