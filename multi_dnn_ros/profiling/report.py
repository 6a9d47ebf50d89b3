"""A profile as tables, JSON, CSV and two plots."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import table, write_figure, write_text
from multi_dnn_ros.graph.operations import KINDS
from multi_dnn_ros.planning.profile import JobProfile, LayerProfile, Profile

JSON_NAME, CSV_NAME, ROOFLINE_PLOT, LAYER_PLOT = "profile.json", "layers.csv", "roofline.png", "layers.png"
_COLUMNS = (
    "layer", "module", "kind", "operation", "job", "inputs", "outputs", "macs", "flops", "parameters", "bytes_read",
    "bytes_written", "flops_per_byte", "ms", "ms_min", "ms_p25", "ms_p75", "ms_max", "samples", "share", "bound_ms",
    "times_bound",
)  # fmt: skip
#: One colour per kind, from a colour-blind safe palette.
_PALETTE = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#994455", "#997700", "#004488",
            "#999999", "#ee99aa", "#44bb99", "#dddddd", "#000000")  # fmt: skip
COLORS = dict(zip(KINDS, _PALETTE, strict=True))


def write_profile(folder: Path, profile: Profile) -> list[Path]:
    """Write profile.json, layers.csv and both plots atomically into `folder`, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / JSON_NAME, profile.model_dump_json(indent=1) + "\n")
    write_text(folder / CSV_NAME, layers_csv(profile))
    plot_roofline(folder / ROOFLINE_PLOT, profile)
    plot_layers(folder / LAYER_PLOT, profile)
    return [folder / name for name in (JSON_NAME, CSV_NAME, ROOFLINE_PLOT, LAYER_PLOT)]


def layers_csv(profile: Profile) -> str:
    """One row per layer, in the order of the network."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for layer in profile.layers:
        work, ms, distance = layer.work, layer.ms, layer.distance
        writer.writerow(
            (layer.name, layer.module, layer.kind, layer.operation, layer.job, shapes(layer.inputs),
             shapes(layer.outputs), work.macs, work.flops, work.parameters, work.bytes_read, work.bytes_written,
             f"{work.intensity:.6g}", *(f"{value:.6g}" for value in (ms.p50, ms.min, ms.p25, ms.p75, ms.max)),
             ms.samples, f"{_share(layer, profile):.6g}", f"{layer.bound_ms:.6g}",
             "" if distance is None else f"{distance:.6g}")
        )  # fmt: skip
    return text.getvalue()


def layer_table(profile: Profile, count: int) -> str:
    """The `count` slowest layers in descending order; a Markdown table."""
    layers = sorted(profile.layers, key=lambda layer: layer.ms.p50, reverse=True)[:count]
    rows = [
        [layer.name, layer.module[-32:], layer.kind, shapes(layer.outputs), str(layer.job), *_work(layer),
         f"{layer.ms.p50:.3f}", f"{layer.ms.spread:.0%}", f"{_share(layer, profile):.1%}", f"{layer.bound_ms:.3f}",
         _times(layer.distance)]
        for layer in layers
    ]  # fmt: skip
    header = ["layer", "module", "kind", "output", "job", "MMACs", "kparams", "kB read", "kB written", "ops/B", "ms",
              "spread", "share", "bound ms", "x bound"]  # fmt: skip
    return table(header, rows)


def kind_table(profile: Profile) -> str:
    """One row per kind of layer, the costliest first."""
    rows = []
    for kind in KINDS:
        layers = [layer for layer in profile.layers if layer.kind == kind]
        if layers:
            ms, bound = sum(layer.ms.p50 for layer in layers), sum(layer.bound_ms for layer in layers)
            macs = sum(layer.work.macs for layer in layers)
            rows.append((ms, [kind, str(len(layers)), f"{macs / 1e6:.1f}", f"{ms:.3f}",
                              f"{ms / profile.sum_ms if profile.sum_ms else 0.0:.1%}", f"{bound:.3f}",
                              _times(ms / bound if bound else None)]))  # fmt: skip
    rows.sort(key=lambda row: row[0], reverse=True)
    header = ["kind", "layers", "MMACs", "ms", "share", "bound ms", "x bound"]
    return table(header, [cells for _, cells in rows])


def job_table(profile: Profile) -> str:
    """One row per job."""
    rows = [
        [str(number), str(job.layers), f"{job.work.macs / 1e6:.1f}", f"{job.work.intensity:.1f}", f"{job.ms.p50:.3f}",
         f"{job.ms.spread:.0%}", f"{_job_share(job, profile):.1%}", f"{job.layers_ms:.3f}", f"{job.bound_ms:.3f}",
         _times(job.ms.p50 / job.bound_ms if job.bound_ms else None)]
        for number, job in enumerate(profile.jobs)
    ]  # fmt: skip
    header = ["job", "layers", "MMACs", "ops/B", "ms", "spread", "share", "its layers ms", "bound ms", "x bound"]
    return table(header, rows)


def closing_lines(profile: Profile) -> list[str]:
    """Sum of the layers against the whole network, balance of the jobs, device limits, and warnings."""
    limits = profile.limits
    return [
        f"sum of the layers {profile.sum_ms:.3f} ms, whole network {profile.whole.p50:.3f} ms: "
        f"{profile.closure - 1:+.1%} ({profile.whole.samples} rounds)",
        f"longest job {profile.imbalance:.2f} times the mean of {len(profile.jobs)}",
        f"{limits.name}: {limits.flops_per_s / 1e9:.1f} GFLOP/s, {limits.bytes_per_s / 1e9:.1f} GB/s; arithmetic is "
        f"the limit above {limits.ridge:.1f} operations per byte",
        *(f"warning: {warning}" for warning in profile.warnings),
    ]


def shapes(sizes: Sequence[Sequence[int]]) -> str:
    """Format shapes as 1x64x56x56, joined with +."""
    return "+".join("x".join(map(str, shape)) or "scalar" for shape in sizes)


def plot_roofline(path: Path, profile: Profile) -> None:
    """Plot each layer's performance over its arithmetic intensity below the device's limits; area: share of time."""
    with optional("a picture"):
        from matplotlib.figure import Figure

    layers = [layer for layer in profile.layers if layer.work.flops and layer.work.moved and layer.ms.p50 > 0.0]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    limits = profile.limits
    intensities = [layer.work.intensity for layer in layers] or [1.0]
    low, high = min(*intensities, limits.ridge) / 2, max(*intensities, limits.ridge) * 3
    roof = [min(limits.flops_per_s, at * limits.bytes_per_s) / 1e9 for at in (low, limits.ridge, high)]
    axes.plot([low, limits.ridge, high], roof, color="#333333", linewidth=1.4, zorder=1)
    axes.annotate(f"{limits.flops_per_s / 1e9:,.0f} GFLOP/s", (high, roof[-1]), xytext=(0, 4), fontsize=8, ha="right",
                  textcoords="offset points")  # fmt: skip
    slope = (low * limits.ridge) ** 0.5
    axes.annotate(f"{limits.bytes_per_s / 1e9:,.0f} GB/s", (slope, slope * limits.bytes_per_s / 1e9), xytext=(-6, 6),
                  fontsize=8, ha="right", textcoords="offset points")  # fmt: skip
    for kind in KINDS:
        of_kind = [layer for layer in layers if layer.kind == kind]
        if of_kind:
            axes.scatter(
                [layer.work.intensity for layer in of_kind],
                [layer.work.flops / layer.ms.p50 / 1e6 for layer in of_kind],
                s=[10 + 1500 * _share(layer, profile) for layer in of_kind],
                color=COLORS[kind], alpha=0.6, linewidths=0.4, edgecolors="#222222", label=kind, zorder=2,
            )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("arithmetic operations per byte read or written")
    axes.set_ylabel("GFLOP/s reached")
    axes.set_title(f"{profile.model}, {profile.backend}, {limits.name}", fontsize=9)
    axes.grid(True, which="major", color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    legend: Any = axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    for handle in legend.legend_handles:
        handle.set_sizes([40])
    write_figure(path, figure)


def plot_layers(path: Path, profile: Profile) -> None:
    """Plot the time of each layer in the order of the network, with quartiles, bound, and job boundaries."""
    with optional("a picture"):
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

    layers = [layer for layer in profile.layers if layer.kind != "view"]
    figure = Figure(figsize=(max(7.0, min(18.0, 2.5 + 0.11 * len(layers))), 4.2), layout="constrained")
    axes = figure.add_subplot()
    positions = list(range(len(layers)))
    medians = [layer.ms.p50 for layer in layers]
    spread = [[layer.ms.p50 - layer.ms.p25 for layer in layers], [layer.ms.p75 - layer.ms.p50 for layer in layers]]
    axes.bar(positions, medians, 0.85, color=[COLORS[layer.kind] for layer in layers])
    axes.errorbar(positions, medians, yerr=spread, fmt="none", ecolor="#555555", elinewidth=0.7)
    axes.hlines([layer.bound_ms for layer in layers], [position - 0.42 for position in positions],
                [position + 0.42 for position in positions], color="#111111", linewidth=1.2)  # fmt: skip
    for position in positions[1:]:
        if layers[position].job != layers[position - 1].job:
            axes.axvline(position - 0.5, color="#888888", linewidth=0.8, linestyle=(0, (4, 3)))
    step = max(1, len(layers) // 60)
    axes.set_xticks(positions[::step], [layer.name for layer in layers[::step]], rotation=90, fontsize=6)
    axes.set_xlim(-0.8, max(1, len(layers)) - 0.2)
    axes.set_ylabel("ms")
    axes.set_title(f"{profile.model}, {profile.backend}, {profile.limits.name}: {profile.sum_ms:.2f} ms", fontsize=9)
    handles: list[Any] = [
        Patch(color=COLORS[kind], label=kind) for kind in KINDS if any(layer.kind == kind for layer in layers)
    ]
    handles.append(Line2D([], [], color="#111111", linewidth=1.2, label="roofline bound"))
    handles.append(Line2D([], [], color="#888888", linewidth=0.8, linestyle="--", label="next job"))
    axes.legend(handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    write_figure(path, figure)


def _share(layer: LayerProfile, profile: Profile) -> float:
    return layer.ms.p50 / profile.sum_ms if profile.sum_ms else 0.0


def _job_share(job: JobProfile, profile: Profile) -> float:
    return job.ms.p50 / profile.whole.p50 if profile.whole.p50 else 0.0


def _work(layer: LayerProfile) -> list[str]:
    work = layer.work
    thousands = (work.parameters, work.bytes_read, work.bytes_written)
    return [f"{work.macs / 1e6:.2f}", *(f"{value / 1e3:.1f}" for value in thousands), f"{work.intensity:.1f}"]


def _times(distance: float | None) -> str:
    return "" if distance is None else f"{distance:.2f}"
