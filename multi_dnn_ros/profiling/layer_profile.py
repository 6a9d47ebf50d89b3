"""Profile of a network: work, time and roofline bound of every layer and job, as tables, JSON, CSV and a plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import table, write_json
from multi_dnn_ros.models.cut import GraphStage, NodeCost, cut_graph
from multi_dnn_ros.models.layers import Layer, node_costs
from multi_dnn_ros.models.operations import KINDS
from multi_dnn_ros.planning.layer_chain import Traced, make_chain, make_layer_chain
from multi_dnn_ros.planning.timing import Target
from multi_dnn_ros.profiling.limits import DeviceLimits
from multi_dnn_ros.profiling.network import Network, ReportProgress
from multi_dnn_ros.profiling.samples import write_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WARM_UP_ROUNDS = 2


#: The jobs, and milliseconds by [job][round] and by [layer][round], in the network's order.
Times = tuple[Sequence[GraphStage], Sequence[Sequence[float]], Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Quartiles:
    """Milliseconds over the rounds."""

    p25: float
    p50: float
    p75: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Quartiles:
        return cls(*(float(value) for value in np.percentile(samples, (25, 50, 75))))


@dataclass(frozen=True)
class TimedLayer:
    """job: index of its job. bound_ms: the longer of its arithmetic and its memory traffic at the device's limits."""

    layer: Layer
    job: int
    ms: Quartiles
    bound_ms: float


@dataclass(frozen=True)
class Profile:
    """Profile of one network on one device. whole: all jobs, one after another."""

    model: str
    target: str
    limits: DeviceLimits
    shape: tuple[int, ...]
    layers: tuple[TimedLayer, ...]
    jobs: tuple[Quartiles, ...]
    whole: Quartiles

    @property
    def sum_ms(self) -> float:
        """Sum of the layers' medians."""
        return sum(timed.ms.p50 for timed in self.layers)

    @property
    def imbalance(self) -> float:
        """The longest job divided by the mean job."""
        times = [job.p50 for job in self.jobs]
        return max(times) * len(times) / sum(times) if sum(times) else 1.0


def profile_network(
    network: Network,
    target: Target,
    limits: DeviceLimits,
    *,
    jobs: int,
    measured_cut: bool = False,
    progress: ReportProgress = lambda done, total: None,
    timed: Callable[..., Times] | None = None,
) -> Profile:
    """Trace and time a network.

    The cut into jobs balances measured times with `measured_cut`, otherwise estimated costs. timed: replaces measure().
    """
    timed = timed or measure
    traced = network.traced(target.batch)
    layers = traced.layers(target.dtype)
    costs: NodeCost | None = None
    if measured_cut:
        _, _, layers_ms = timed(traced, target, jobs=1, progress=progress)
        medians = [float(np.median(ms)) for ms in layers_ms]
        costs = node_costs(zip(layers, medians, strict=True))
    stages, jobs_ms, layers_ms = timed(traced, target, jobs=jobs, costs=costs, progress=progress)
    job_of = {name: job for job, stage in enumerate(stages) for name in stage.operations}
    found = tuple(
        TimedLayer(layer, job_of[layer.name], Quartiles.of(ms), limits.bound_ms(layer.work.flops, layer.work.moved))
        for layer, ms in zip(layers, layers_ms, strict=True)
    )
    whole, of_jobs = Quartiles.of(np.sum(jobs_ms, axis=0)), tuple(Quartiles.of(ms) for ms in jobs_ms)
    shape = tuple(traced.inputs[0].shape)
    return Profile(network.name, target.name(), limits, shape, found, of_jobs, whole)


def measure(
    traced: Traced, target: Target, *, jobs: int, costs: NodeCost | None = None,
    progress: ReportProgress = lambda done, total: None,
) -> Times:  # fmt: skip
    """Run the network `target.rounds` times in `jobs` jobs and as often layer by layer, in turns, so that a disturbance
    affects both.

    costs: of the cut into jobs, see graph.cut. Raises what cutting or the backend raises.
    """
    stages = cut_graph(traced.graph_module, jobs, costs=costs)
    served, layered = make_chain(stages, traced.inputs, target), make_layer_chain(traced, target)
    rounds = []
    for turn in range(-_WARM_UP_ROUNDS, target.rounds):
        progress(max(0, turn), target.rounds)
        rounds.append((served(), layered()))
    progress(target.rounds, target.rounds)
    of_jobs, of_layers = zip(*rounds[_WARM_UP_ROUNDS:], strict=True)
    return stages, [*zip(*of_jobs, strict=True)], [*zip(*of_layers, strict=True)]


def layer_table(profile: Profile, count: int = 15) -> str:
    """The `count` slowest layers in descending order."""
    layers = sorted(profile.layers, key=lambda timed: timed.ms.p50, reverse=True)[:count]
    header = ("layer", "module", "kind", "output", "job", "MMACs", "kB moved", "ops/B", "ms", "share", "bound ms",
              "x bound")  # fmt: skip
    rows = [
        [timed.layer.name, timed.layer.module[-32:], timed.layer.work.kind, _shapes(timed.layer), str(timed.job),
         f"{timed.layer.work.macs / 1e6:.2f}", f"{timed.layer.work.moved / 1e3:.1f}",
         f"{timed.layer.work.intensity:.1f}", f"{timed.ms.p50:.3f}", f"{_part(timed.ms.p50, profile.sum_ms):.1%}",
         f"{timed.bound_ms:.3f}", f"{_part(timed.ms.p50, timed.bound_ms):.2f}"]
        for timed in layers
    ]  # fmt: skip
    return table(header, rows)


def kind_table(profile: Profile) -> str:
    """One row per kind of layer, the costliest first."""
    rows = []
    for kind in KINDS:
        layers = [timed for timed in profile.layers if timed.layer.work.kind == kind]
        ms, bound = sum(timed.ms.p50 for timed in layers), sum(timed.bound_ms for timed in layers)
        macs = sum(timed.layer.work.macs for timed in layers)
        if layers:
            rows.append((ms, [kind, str(len(layers)), f"{macs / 1e6:.1f}", f"{ms:.3f}",
                              f"{_part(ms, profile.sum_ms):.1%}", f"{_part(ms, bound):.2f}"]))  # fmt: skip
    rows.sort(reverse=True)
    return table(("kind", "layers", "MMACs", "ms", "share", "x bound"), [cells for _, cells in rows])


def job_table(profile: Profile) -> str:
    """One row per job."""
    rows = []
    for number, ms in enumerate(profile.jobs):
        own = [timed for timed in profile.layers if timed.job == number]
        layers_ms, spread = sum(timed.ms.p50 for timed in own), _part(ms.p75 - ms.p25, ms.p50)
        rows.append([str(number), str(len(own)), f"{ms.p50:.3f}", f"{spread:.0%}", f"{layers_ms:.3f}",
                     f"{sum(timed.bound_ms for timed in own):.3f}"])  # fmt: skip
    return table(("job", "layers", "ms", "spread", "its layers ms", "bound ms"), rows)


def closing_lines(profile: Profile) -> list[str]:
    """Sum of the layers against the whole network, balance of the jobs, and the device's limits."""
    return [
        f"sum of the layers {profile.sum_ms:.3f} ms, whole network {profile.whole.p50:.3f} ms: "
        f"{_part(profile.sum_ms, profile.whole.p50) - 1:+.1%}",
        f"longest job {profile.imbalance:.2f} times the mean of {len(profile.jobs)}",
        profile.limits.text(),
    ]


def write_profile(folder: Path, profile: Profile, **origin: Any) -> None:
    """Write profile.json, layers.csv and roofline.png, and create the folder. origin: first keys of the JSON."""
    content = {
        **origin,
        "model": profile.model,
        "target": profile.target,
        "limits": asdict(profile.limits),
        "shape": list(profile.shape),
        "whole_ms": asdict(profile.whole),
        "sum_of_layers_ms": profile.sum_ms,
        "jobs_ms": [asdict(job) for job in profile.jobs],
        "longest_job_over_mean": profile.imbalance,
        "layers": [_row(timed, profile) for timed in profile.layers],
    }
    write_json(folder / "profile.json", content)
    write_rows(folder / "layers.csv", content["layers"])
    _plot_roofline(folder / "roofline.png", profile)


def _row(timed: TimedLayer, profile: Profile) -> dict[str, Any]:
    layer, work = timed.layer, timed.layer.work
    return {
        "layer": layer.name, "module": layer.module, "operation": layer.operation, "output": _shapes(layer),
        "job": timed.job, **asdict(work), "intensity": work.intensity, "ms": timed.ms.p50, "ms_p25": timed.ms.p25,
        "ms_p75": timed.ms.p75, "share": _part(timed.ms.p50, profile.sum_ms), "bound_ms": timed.bound_ms,
    }  # fmt: skip


def _plot_roofline(path: Path, profile: Profile) -> None:
    """Each layer's performance over its arithmetic intensity below the device's limits; area: share of the time."""
    with optional("a picture"):
        from matplotlib import colormaps
        from matplotlib.figure import Figure

    shown = [timed for timed in profile.layers if timed.layer.work.flops and timed.layer.work.moved and timed.ms.p50]
    limits = profile.limits
    intensities = [timed.layer.work.intensity for timed in shown] or [1.0]
    low, high = min(*intensities, limits.ridge) / 2, max(*intensities, limits.ridge) * 3
    roof = [min(limits.flops_per_s, at * limits.bytes_per_s) / 1e9 for at in (low, limits.ridge, high)]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([low, limits.ridge, high], roof, color="#333333", linewidth=1.4, zorder=1)
    for number, kind in enumerate(KINDS):
        of_kind = [timed for timed in shown if timed.layer.work.kind == kind]
        axes.scatter(
            [timed.layer.work.intensity for timed in of_kind],
            [timed.layer.work.flops / timed.ms.p50 / 1e6 for timed in of_kind],
            s=[10 + 1500 * _part(timed.ms.p50, profile.sum_ms) for timed in of_kind],
            color=colormaps["tab20"](number), alpha=0.6, linewidths=0.4, label=kind if of_kind else None,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="operations per byte read or written", ylabel="GFLOP/s reached")
    axes.set_title(f"{profile.model}, {limits.text()}", fontsize=7)
    axes.grid(True, color="#e4e4e4", linewidth=0.6)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    write_figure(path, figure)


def _shapes(layer: Layer) -> str:
    """1x64x56x56, joined with +."""
    return "+".join("x".join(map(str, shape)) or "scalar" for shape in layer.outputs)


def _part(value: float, of: float) -> float:
    return value / of if of else 0.0


def write_figure(path: Path, figure: Figure) -> None:
    """Write a PNG atomically."""
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
