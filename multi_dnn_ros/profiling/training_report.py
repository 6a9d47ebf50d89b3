"""A training profile as tables, JSON and CSV."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.reporting import table, write_json
from multi_dnn_ros.planning.fit import three_digits
from multi_dnn_ros.profiling.limits import DeviceLimits
from multi_dnn_ros.profiling.samples import write_rows
from multi_dnn_ros.profiling.training import TrainingProfile


def layer_rows(profile: TrainingProfile, limits: DeviceLimits) -> list[dict[str, Any]]:
    """The columns of layers.csv, one row per layer in the order of the network.

    Bounds: of the device's roofline and, for the all-reduce, of the link.
    """
    rows = []
    for layer in profile.layers:
        row = {"layer": layer.name, "kind": layer.kind, "parameters": layer.parameters}
        for phase in ("forward", "backward"):
            work = getattr(layer, phase)
            row |= {
                f"{phase}_ms": getattr(layer, f"{phase}_ms"),
                f"{phase}_flops": work.flops,
                f"{phase}_bytes": work.bytes,
                f"{phase}_intensity": work.flops / work.bytes if work.bytes else 0.0,
                f"{phase}_bound_ms": limits.bound_ms(work.flops, work.bytes),
            }
        size = layer.gradient_bytes
        row |= {"gradient_bytes": size, "all_reduce_ms": layer.all_reduce_ms}
        rows.append(row | {"all_reduce_bound_ms": 1e3 * profile.all_reduce_s(size) if size else 0.0})
    return rows


def layer_table(profile: TrainingProfile, limits: DeviceLimits, count: int = 15) -> str:
    """The `count` slowest layers, in the order of the network."""
    rows = layer_rows(profile, limits)
    times = [layer.forward_ms + layer.backward_ms + layer.all_reduce_ms for layer in profile.layers]
    slowest = sorted(sorted(range(len(rows)), key=lambda index: -times[index])[:count])
    header = ("layer", "kind", "forward ms", "backward ms", "all-reduce ms", "GFLOP", "MB", "FLOP/B", "bound ms")
    cells = []
    for index in slowest:
        row = rows[index]
        flops, moved = (row[f"forward_{unit}"] + row[f"backward_{unit}"] for unit in ("flops", "bytes"))
        numbers = (row["forward_ms"], row["backward_ms"], row["all_reduce_ms"], flops / 1e9, moved / 1e6,
                   flops / moved if moved else 0.0, row["forward_bound_ms"] + row["backward_bound_ms"])  # fmt: skip
        cells.append([row["layer"], row["kind"], *map(three_digits, numbers)])
    return table(header, cells)


def closing_lines(profile: TrainingProfile, limits: DeviceLimits) -> list[str]:
    """Sums of the phases, the step, communication, and the limits of device and link."""
    batch = profile.shape[0]
    forward, backward = (sum(getattr(layer, f"{phase}_ms") for layer in profile.layers) for phase in
                         ("forward", "backward"))  # fmt: skip
    lines = [
        f"forward {forward:.3f}, backward {backward:.3f}, optimizer {profile.optimizer_ms:.3f}, exposed communication "
        f"{profile.exposed_ms:.3f} ms: together {profile.sum_ms:.3f} ms",
        f"step {profile.step_ms:.3f} ms ({profile.sum_ms / profile.step_ms - 1:+.1%} in the traced steps), "
        f"{three_digits(1e3 * batch * profile.processes / profile.step_ms)} images/s",
        f"without communication {profile.alone_ms:.3f} ms: {profile.alone_ms / profile.step_ms:.1%} of the rate per "
        f"process remains; {profile.messages} messages",
        limits.text(),
    ]
    if profile.bytes_per_s:
        link = f"{profile.latency_s * 1e6:.1f} us per all-reduce, {profile.bytes_per_s / 1e9:.2f} GB/s"
        lines.append(f"link between {profile.processes} processes: {link}")
    if profile.unused:
        lines.append(f"warning: {len(profile.unused)} parameters get no gradient, such as {profile.unused[0]}")
    return lines


def write_profile(folder: Path, profile: TrainingProfile, limits: DeviceLimits, **origin: Any) -> None:
    """Write training.json and layers.csv. origin: first keys of the JSON."""
    rows = layer_rows(profile, limits)
    content = {key: value for key, value in asdict(profile).items() if key != "layers"}
    write_json(folder / "training.json", {**origin, **content, "limits": asdict(limits), "layers": rows})
    write_rows(folder / "layers.csv", rows)
