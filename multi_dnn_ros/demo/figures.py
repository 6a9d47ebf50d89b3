"""What the DNNs found in a replay and how long they took, as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.reporting import distribution, provenance, table, write_json
from multi_dnn_ros.engine.task import Result
from multi_dnn_ros.replay.replay import FrameOutcome
from multi_dnn_ros.replay.summary import Summary
from multi_dnn_ros.vision.results import Lanes, boxes_of, results_by_name

#: Number of classes that the table names.
_NAMED_CLASSES = 3


@dataclass
class _Found:
    """What one DNN found. frames: number of frames with an inference. counts: number of results of each frame with a
    result that can be counted. names: number of results, by class name. times_ms: time from the start of each frame's
    inference to its decoded result."""

    frames: int = 0
    counts: list[int] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)
    times_ms: list[float] = field(default_factory=list)


class VideoFigures:
    """Collects the figures frame by frame. models: the model of each DNN."""

    def __init__(self, models: Mapping[str, str]) -> None:
        self._models = dict(models)
        self._found = {dnn: _Found() for dnn in models}

    def add(self, outcome: FrameOutcome) -> int:
        """Add the results of a frame; returns the number of those that can be counted."""
        total = 0
        for end in outcome.in_order():
            if not isinstance(end, Result):
                continue
            found = self._found[end.dnn]
            parts = [_names(part) for part in results_by_name(end.dnn, end.output).values()]
            counted = [part for part in parts if part is not None]
            names = [name for part in counted for name in part]
            found.frames += 1
            if counted:
                found.counts.append(len(names))
            found.names.update(names)
            found.times_ms.append((end.timing.finished_ns - end.timing.started_ns) / 1e6)
            total += len(names)
        return total

    def frames(self, dnn: str) -> int:
        """Number of frames with a result of this DNN."""
        return self._found[dnn].frames

    def as_json(self, summary: Summary) -> dict[str, Any]:
        """The model, accounts, results and times of each DNN, by its name.

        `results` and `frames_with_results` are None if no result can be counted, as masks and those of other packages.
        """
        content = {}
        for (dnn, _), stream in summary.streams.items():
            found = self._found[dnn]
            uncounted = found.frames and not found.counts
            content[dnn] = {
                "model": self._models[dnn],
                "offered": stream.offered,
                "published": stream.published,
                "dropped": dict(sorted(stream.dropped.items())),
                "first_drops": dict(sorted(stream.messages.items())),
                "results": None if uncounted else sum(found.counts),
                "frames_with_results": None if uncounted else sum(count > 0 for count in found.counts),
                "by_class": dict(found.names.most_common()),
                "inference_ms": distribution(found.times_ms) if found.times_ms else {},
            }
        return content

    def table(self, summary: Summary) -> str:
        """The figures as a Markdown table with a row for each DNN."""
        rows = []
        for dnn, figures in self.as_json(summary).items():
            times, published, results = figures["inference_ms"], figures["published"], figures["results"]
            common = list(figures["by_class"].items())[:_NAMED_CLASSES]
            more = len(figures["by_class"]) - len(common)
            drops = ", ".join(f"{reason} {count}" for reason, count in figures["dropped"].items())
            rows.append(
                [
                    dnn,
                    Path(figures["model"]).name,
                    f"{published} of {figures['offered']}",
                    drops or "none",
                    *(f"{times[name]:.0f}" if times else "-" for name in ("p50", "p95")),
                    f"{results / published:.1f}" if published and results is not None else "-",
                    ", ".join(f"{name} {count}" for name, count in common) + (f", {more} more" if more else "") or "-",
                ]
            )
        return table(["DNN", "model", "frames", "dropped", "p50 ms", "p95 ms", "results per frame", "found"], rows)

    def write(self, path: Path, summary: Summary, **first: Any) -> None:
        """Write the provenance, `first` and the figures, in this order, as JSON."""
        dnns = self.as_json(summary)
        write_json(path, {**provenance(), **first, "dnns": dnns, "input_damage": summary.input_damage})


def _names(output: Any) -> list[str] | None:
    """The class of each box, or "line" for each lane line; None for class masks and for results of other packages."""
    if (boxes := boxes_of(output)) is not None:
        return [boxes.labels[class_id] for class_id in boxes.class_ids]
    if isinstance(output, Lanes):
        return ["line"] * len(output.lanes)
    return None
