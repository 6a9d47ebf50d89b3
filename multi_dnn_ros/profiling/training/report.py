"""A distributed training profile as text, CSV, JSON and plots."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.reporting import table, three_digits, write_json
from multi_dnn_ros.profiling.training.plots import plot_scaling, plot_timeline
from multi_dnn_ros.profiling.training.profile import LayerProfile, PhaseProfile, TrainingProfile

_PHASES = ("forward", "backward", "all_reduce", "optimizer")
#: Launching limits a step if the host's clock shows more than this times the GPU's time.
_LAUNCH_BOUND = 1.1
_METHODS = {"alone": "no communication", "layers": "reduction by layers", "ddp": "DDP with buckets"}


def layer_table(profile: TrainingProfile, count: int) -> str:
    """The `count` slowest layers, in the order of the network."""
    slowest = set(sorted(profile.layers, key=lambda layer: -layer.ms)[:count])
    rows = [_row(layer) for layer in profile.layers if layer in slowest]
    header = (
        "layer", "kind", "forward ms", "backward ms", "all-reduce ms", "optimizer ms", "exposed ms", "DDP exposed ms",
        "GFLOP", "MB", "FLOP/B", "bound ms",
    )  # fmt: skip
    return table(header, rows)


def _row(layer: LayerProfile) -> list[str]:
    local = (layer.forward, layer.backward, layer.optimizer)
    flops, moved = sum(phase.flops for phase in local), sum(phase.bytes for phase in local)
    times = [getattr(layer, phase).ms for phase in _PHASES]
    return [
        layer.name, layer.kind, *map(three_digits, (*times, layer.exposed_ms, layer.ddp_exposed_ms)),
        three_digits(flops / 1e9), three_digits(moved / 1e6), three_digits(flops / moved if moved else 0.0),
        three_digits(sum(phase.bound_ms for phase in local)),
    ]  # fmt: skip


def method_table(profile: TrainingProfile) -> str:
    """One row per method: measured step, sum of the layers, communication, predicted step, images per second."""
    header = ("method", "step ms", "sum of the layers", "exposed ms", "messages", "predicted ms", "images/s")
    rows = [
        [
            _METHODS[name], three_digits(method.step_ms), f"{three_digits(method.sum_ms)} ({method.closure - 1:+.1%})",
            three_digits(method.exposed_ms), str(method.messages),
            f"{three_digits(method.predicted_ms)} ({method.predicted_ms / method.step_ms - 1:+.1%})",
            three_digits(profile.processes * profile.batch / method.wall_ms * 1e3),
        ]
        for name, method in profile.methods.items()
    ]  # fmt: skip
    return table(header, rows)


def scaling_table(profile: TrainingProfile) -> str:
    """Predicted step times by number of processes."""
    header = ("processes", "hosts", "layers ms", "efficiency", "DDP ms", "efficiency")
    rows = [
        [str(row.processes), str(row.hosts), three_digits(1e3 * row.layers_s), f"{row.layers_efficiency:.1%}",
         three_digits(1e3 * row.ddp_s), f"{row.ddp_efficiency:.1%}"]
        for row in profile.scaling
    ]  # fmt: skip
    return table(header, rows)


def closing_lines(profile: TrainingProfile) -> list[str]:
    """Lines below the tables: device limits, interconnect, the faster method, and warnings."""
    limits = profile.limits
    lines = [
        f"{limits.name}: {limits.flops_per_s / 1e9:.1f} GFLOP/s, {limits.bytes_per_s / 1e9:.1f} GB/s; arithmetic is "
        f"the limit above {limits.ridge:.1f} operations per byte"
    ]
    link, errors = profile.link, profile.fit_errors()
    if link is not None:
        how = "given" if "link" in profile.given else "fitted"
        per = "step of the ring" if link.per_step else "all-reduce"
        lines.append(
            f"interconnect ({how}): {link.latency_s * 1e6:.1f} us per {per}, "
            f"{link.bytes_per_s / 1e9:.2f} GB/s"
            + (f"; error of the fit up to {max(map(abs, errors)):.0%}" if errors and how == "fitted" else "")
        )
    if profile.processes > 1:
        overlap = profile.overlap
        lines.append(
            f"while computation and communication overlap, they take {overlap.compute:.2f} and "
            f"{overlap.communication:.2f} times as long as alone"
        )
        layers, ddp = profile.methods["layers"], profile.methods["ddp"]
        reduced = [layer for layer in profile.layers if layer.gradient_bytes]
        fewer = [layer for layer in reduced if layer.exposed_ms < layer.ddp_exposed_ms]
        lines.append(
            f"{faster_method(layers.step_ms, ddp.step_ms)}; {len(fewer)} of {len(reduced)} layers delay the step less "
            "with reduction by layers"
        )
    main = profile.methods[profile.main]
    if main.wall_ms > _LAUNCH_BOUND * main.step_ms:
        lines.append(
            f"launching limits this step: the GPU computes for {three_digits(main.step_ms)} of "
            f"{three_digits(main.wall_ms)} ms and waits for the rest; a larger --batch uses the GPU better"
        )
    difference = main.closure - 1
    if abs(difference) > 0.10:
        lines.append(
            f"warning: the sum of the layers differs from the step by {difference:+.1%}; repeat on an idle machine"
        )
    if profile.unused:
        lines.append(f"warning: {len(profile.unused)} parameters get no gradient, such as {profile.unused[0]}")
    return lines


def faster_method(layers_ms: float, ddp_ms: float) -> str:
    """Which method takes less time per step, and how much less, relative to the slower one."""
    faster = "reduction by layers" if layers_ms < ddp_ms else "DDP"
    return f"a step takes {1 - min(layers_ms, ddp_ms) / max(layers_ms, ddp_ms):.1%} less time with {faster}"


def write_profile(folder: Path, profile: TrainingProfile, **origin: Any) -> None:
    """Write training.json, layers.csv, timeline.png and, if scaling was predicted, scaling.png."""
    write_json(folder / "training.json", {**origin, **profile.for_json()})
    _write_csv(folder / "layers.csv", profile)
    plot_timeline(folder / "timeline.png", profile)
    if profile.scaling:
        plot_scaling(folder / "scaling.png", profile)


def _write_csv(path: Path, profile: TrainingProfile) -> None:
    with atomic_write(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        columns = list(PhaseProfile.__dataclass_fields__)
        writer.writerow(
            ["layer", "kind", "parameters", "gradient_bytes"]
            + [f"{phase}_{column}" for phase in _PHASES for column in columns]
            + ["launch_ms", "in_flight_ms", "exposed_ms", "ddp_exposed_ms"]
        )
        for layer in profile.layers:
            phases = [getattr(getattr(layer, phase), column) for phase in _PHASES for column in columns]
            writer.writerow(
                [
                    layer.name,
                    layer.kind,
                    layer.parameters,
                    layer.gradient_bytes,
                    *phases,
                    layer.launch_ms,
                    layer.in_flight_ms,
                    layer.exposed_ms,
                    layer.ddp_exposed_ms,
                ]
            )
