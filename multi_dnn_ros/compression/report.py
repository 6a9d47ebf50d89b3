"""Report of a decomposition: JSON, Markdown and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure, write_json, write_text
from multi_dnn_ros.compression.decompose import Outcome
from multi_dnn_ros.compression.macs import Cost

JSON_NAME, MARKDOWN_NAME, PLOT_NAME = "report.json", "report.md", "layers.png"
#: Maximum number of layers in the plot; the largest are shown.
_SHOWN = 60


def summary(
    outcomes: Sequence[Outcome],
    costs: tuple[Cost, Cost],
    file_bytes: tuple[int, int],
    latency: Sequence[Mapping[str, Any]],
    **origin: Any,
) -> dict[str, Any]:
    """Content of the report.

    costs, file_bytes: before and after. latency: one entry per number of concurrent instances, with `instances`,
    `original_ms`, `decomposed_ms` from the same run; empty if nothing was timed. origin: command, machine, versions,
    model, policy and so on, copied unchanged.
    """
    before, after = costs
    return {
        **origin,
        "macs": _change(before.macs, after.macs),
        "parameters": _change(before.parameters, after.parameters),
        "file_bytes": _change(*file_bytes),
        "latency_ms": list(latency),
        "layers": [
            {
                "name": outcome.name,
                "layer": outcome.layer,
                "fate": "decomposed" if outcome.plan is not None else "kept",
                "plan": outcome.plan.model_dump(mode="json") if outcome.plan is not None else None,
                "reason": outcome.reason,
                "relative_error": outcome.error,
                "macs": _change(*outcome.macs),
                "parameters": _change(*outcome.parameters),
                "measured": outcome.details,
            }
            for outcome in outcomes
        ],
    }


def write_report(folder: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, Markdown and a plot atomically into `folder`, which is created."""
    write_json(folder / JSON_NAME, content)
    write_text(folder / MARKDOWN_NAME, markdown(content))
    _plot_layers(folder / PLOT_NAME, content)


def totals(content: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(quantity, before, after, change) of the network, as text."""
    rows = []
    for key, name, scale, unit in (
        ("macs", "MACs", 1e9, "G"),
        ("parameters", "parameters", 1e6, "M"),
        ("file_bytes", "file", 1e6, "MB"),
    ):
        before, after, cut = content[key].values()
        rows.append((name, f"{before / scale:.3f} {unit}", f"{after / scale:.3f} {unit}", f"{-cut:+.1%}"))
    for entry in content["latency_ms"]:
        before, after = entry["original_ms"], entry["decomposed_ms"]
        name = "latency, alone" if entry["instances"] == 1 else f"latency, {entry['instances']} at once"
        rows.append((name, f"{before:.3f} ms", f"{after:.3f} ms", f"{after / before - 1:+.1%}"))
    return rows


def markdown(content: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = [f"# {content['model']} decomposed", "", f"`{content['command']}`", ""]
    lines += _table(("", "before", "after", "change"), totals(content))
    if content["latency_ms"]:
        lines += ["", f"Latency: medians of the same run, alternating, on {content['target']}."]
    layers = content["layers"]
    decomposed = [layer for layer in layers if layer["fate"] == "decomposed"]
    lines += ["", f"## Layers: {len(decomposed)} of {len(layers)} decomposed", ""]
    rows = [
        (
            f"`{layer['name']}`",
            layer["layer"],
            _result(layer),
            f"{layer['macs']['before'] / 1e6:.2f}",
            f"{layer['macs']['after'] / 1e6:.2f}",
            f"{layer['relative_error']:.3f}" if layer["plan"] else "",
        )
        for layer in layers
    ]
    lines += _table(("layer", "type", "result", "MMACs before", "MMACs after", "relative error"), rows)
    lines += ["", f"![layers]({PLOT_NAME})"]
    if measured := [layer for layer in layers if layer["measured"]]:
        lines += ["", "## Measured times", ""]
        lines += _table(("layer", "times"), [(f"`{layer['name']}`", layer["measured"]) for layer in measured])
    return "\n".join(lines) + "\n"


def _result(layer: Mapping[str, Any]) -> str:
    plan = layer["plan"]
    if plan is None:
        return f"kept: {layer['reason']}"
    if plan["kind"] == "svd":
        return f"svd, rank {plan['rank']}"
    return f"ranks {plan['in_rank'] or 'all'} in, {plan['out_rank'] or 'all'} out"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]


def _change(before: int, after: int) -> dict[str, float]:
    return {"before": before, "after": after, "cut": 1.0 - after / before if before else 0.0}


def _plot_layers(path: Path, content: Mapping[str, Any]) -> None:
    """MACs of the largest layers, before and after."""
    with optional("a picture"):
        from matplotlib.figure import Figure

    order = sorted(content["layers"], key=lambda layer: -layer["macs"]["before"])[:_SHOWN]
    layers = [layer for layer in content["layers"] if layer in order and layer["macs"]["before"]][::-1]
    figure = Figure(figsize=(8, 1.2 + 0.2 * len(layers)), layout="constrained")
    axes = figure.add_subplot()
    names = [layer["name"][-40:] for layer in layers]
    for key, color, height in (("before", "#8a97a8", 0.8), ("after", "#d1603d", 0.45)):
        axes.barh(range(len(layers)), [layer["macs"][key] / 1e6 for layer in layers], height, color=color, label=key)
    axes.set_yticks(range(len(layers)), names, fontsize=6)
    axes.set_xlabel("million MACs")
    axes.set_title(f"{content['model']}: MACs of each layer", fontsize=10)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    write_figure(path, figure)
