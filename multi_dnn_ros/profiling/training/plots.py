"""Plots of a distributed training profile: overlap of computation and communication, and predicted scaling."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_figure
from multi_dnn_ros.profiling.training.profile import TrainingProfile
from multi_dnn_ros.profiling.training.trace import Message, Timeline

_COLORS = {
    "forward": "#4c78a8",
    "backward": "#f58518",
    "reduce": "#b279a2",
    "wait": "#e45756",
    "optimizer": "#54a24b",
}
_LABELS = {
    "forward": "forward",
    "backward": "backward",
    "reduce": "launch of an all-reduce",
    "wait": "waiting for an all-reduce",
    "optimizer": "optimizer",
}
_HIDDEN, _EXPOSED = "#72b7b2", "#e45756"
_TITLES = {"alone": "no communication", "layers": "each layer reduces its gradients", "ddp": "DDP with buckets"}


def plot_timeline(path: Path, profile: TrainingProfile) -> None:
    """Plot the step of median duration of process 0 for each method: computation above, all-reduces below."""
    with optional("a picture"):
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch

    names = [name for name in ("layers", "ddp", "alone") if name in profile.timelines]
    figure = Figure(figsize=(12, 0.8 + 2.0 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for axis, name in zip(axes, names, strict=True):
        _draw(axis, profile.timelines[name])
        method = profile.methods[name]
        title = f"{_TITLES[name]}: step {method.step_ms:.4g} ms, exposed {method.exposed_ms:.3g} ms"
        axis.set_title(title, fontsize=9)
    axes[-1].set_xlabel("ms since the step began (without bookkeeping of the profiler)")
    figure.suptitle(f"{profile.model}, batch {profile.batch} per process, {profile.processes} processes", fontsize=10)
    handles = [Patch(color=color, label=_LABELS[phase]) for phase, color in _COLORS.items()]
    handles += [Patch(color=_HIDDEN, label="all-reduce, hidden"), Patch(color=_EXPOSED, label="all-reduce, exposed")]
    figure.legend(handles=handles, fontsize=8, frameon=False, loc="outside right upper")
    write_figure(path, figure)


def _draw(axis: Any, timeline: Timeline) -> None:
    for phase, color in _COLORS.items():
        spans = [
            (1e3 * _shown(timeline, segment.start_s), 1e3 * (segment.end_s - segment.start_s))
            for segment in timeline.segments
            if segment.phase == phase
        ]
        axis.broken_barh(spans, (2.1, 0.8), facecolors=color, linewidth=0.0)
    # Messages may overlap in time: two rows, so that successive ones can be told apart.
    for number, message in enumerate(timeline.messages):
        row = 1.1 if number % 2 == 0 else 0.1
        for start, end, exposed in exposure(timeline, message):
            span = (1e3 * _shown(timeline, start), 1e3 * (_shown(timeline, end) - _shown(timeline, start)))
            color = _EXPOSED if exposed else _HIDDEN
            axis.broken_barh([span], (row, 0.8), facecolors=color, edgecolors="white", linewidth=0.3)
    axis.set_ylim(0, 3)
    axis.set_yticks([2.5, 1.0], ["computation", "all-reduces"], fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def exposure(timeline: Timeline, message: Message) -> list[tuple[float, float, bool]]:
    """(start, end, exposed) of each part of a message: hidden while layers compute, exposed while the step waits.

    DDP waits at the end of its backward pass, after the launch of its last bucket.
    """
    waits = [(segment.start_s, segment.end_s) for segment in timeline.segments if segment.phase == "wait"]
    if not waits:
        end = max(segment.end_s for segment in timeline.segments if segment.phase == "backward")
        waits = [(max(other.start_s for other in timeline.messages), end)]
    cuts = {message.start_s, message.end_s}
    cuts |= {time for wait in waits for time in wait if message.start_s < time < message.end_s}
    times = sorted(cuts)
    return [
        (start, end, any(first <= (start + end) / 2 < last for first, last in waits)) for start, end in pairwise(times)
    ]


def _shown(timeline: Timeline, time_s: float) -> float:
    """The time without the bookkeeping of the profiler up to then."""
    bookkeeping_s = sum(
        max(0.0, min(segment.end_s, time_s) - segment.start_s) for segment in timeline.segments if segment.phase is None
    )
    return time_s - bookkeeping_s


def plot_scaling(path: Path, profile: TrainingProfile) -> None:
    """Plot predicted images per second over the number of processes, with the measured values."""
    with optional("a picture"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.add_subplot()
    counts = [row.processes for row in profile.scaling]
    single_rate = profile.batch / profile.scaling[0].layers_s
    axis.plot(counts, [single_rate * count for count in counts], color="#999999", linewidth=1.0, label="ideal")
    for name, color, style in (("layers", "#f58518", "o--"), ("ddp", "#4c78a8", "s--")):
        seconds = [row.layers_s if name == "layers" else row.ddp_s for row in profile.scaling]
        rates = [profile.batch * count / time for count, time in zip(counts, seconds, strict=True)]
        axis.plot(counts, rates, style, color=color, markersize=3, label=f"predicted: {_TITLES[name]}")
        if name in profile.methods:
            rate = 1e3 * profile.batch * profile.processes / profile.methods[name].step_ms
            axis.plot([profile.processes], [rate], "*", color=color, markersize=11, label=f"measured: {_TITLES[name]}")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(counts, list(map(str, counts)))
    axis.set_xlabel("processes")
    axis.set_ylabel("images/s")
    axis.set_title(f"predicted, not measured beyond {profile.processes} processes: {profile.model}", fontsize=10)
    axis.grid(True, color="#e4e4e4", linewidth=0.6)
    axis.legend(fontsize=8, frameon=False)
    write_figure(path, figure)
