"""Figures of a demo, by DNN: rate, latency, drops, and score against the ground truth."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.demo.recorded_frames import RecordedFrame
from multi_dnn_ros.training.metrics import LaneScore, Truth, mean_average_precision
from multi_dnn_ros.vision.result_kind import ResultKind
from multi_dnn_ros.vision.results import Detections, Lanes, boxes_of


@dataclass
class DnnFigures:
    """Figures of one DNN, collected frame by frame.

    kind: the kind of its results, which determines what they are compared with. labels: its classes.
    """

    kind: ResultKind
    labels: tuple[str, ...] = ()
    latencies_ms: list[float] = field(default_factory=list)
    stamps_ns: list[int] = field(default_factory=list)
    found: list[Detections] = field(default_factory=list)
    truths: list[Truth] = field(default_factory=list)
    lanes: LaneScore = field(default_factory=LaneScore)

    def add(self, dnn: str, frame: RecordedFrame) -> None:
        result = frame.results.get(dnn)
        if result is None:
            return
        self.latencies_ms.append(result.latency_ms)
        self.stamps_ns.append(frame.stamp_ns)
        if self.kind.truth == "lanes" and frame.lane_mask is not None:
            self.lanes.add(result.output.mask, frame.lane_mask)
        elif self.kind.truth == "boxes" and frame.truth is not None:
            self.found.append(result.output)
            self.truths.append(_of_classes(frame.truth, self.labels))

    def summary(self) -> dict[str, Any]:
        """Rate from the stamps of the frames with results; latency from stamp to receipt; scores."""
        summary: dict[str, Any] = {"frames": len(self.stamps_ns)}
        if len(self.stamps_ns) > 1:
            span_s = (max(self.stamps_ns) - min(self.stamps_ns)) / 1e9
            summary["rate_hz"] = (len(self.stamps_ns) - 1) / span_s if span_s > 0 else 0.0
        if self.latencies_ms:
            summary["latency_ms"] = distribution(self.latencies_ms)
        if self.lanes.true or self.lanes.predicted:
            summary.update({f"lane_{name}": value for name, value in self.lanes.scores().items()})
        if any(len(truth.boxes) for truth in self.truths):
            summary["true_boxes"] = sum(len(truth.boxes) for truth in self.truths)
            summary.update(mean_average_precision(self.found, self.truths, self.labels))
        return summary


def result_count(frame: RecordedFrame) -> int:
    """Number of boxes and lane lines of all DNNs."""
    count = 0
    for result in frame.results.values():
        boxes = boxes_of(result.output)
        found = result.output.lanes if isinstance(result.output, Lanes) else boxes
        count += 0 if found is None else len(found)
    return count


def last_statuses(messages: Iterable[Any], node: str) -> dict[str, dict[str, Any]]:
    """The latest diagnostics of each task of `node`, from DiagnosticArrays in order."""
    statuses: dict[str, dict[str, Any]] = {}
    for message in messages:
        for status in message.status:
            name, _, task = status.name.partition(": ")
            if name == node.lstrip("/"):
                statuses[task] = {
                    "level": int.from_bytes(status.level, "little"),
                    "message": status.message,
                    "hardware_id": status.hardware_id,
                    "values": {value.key: value.value for value in status.values},
                }
    return statuses


def frame_counts(status: Mapping[str, Any]) -> dict[str, Any]:
    """Offered, published, pending and drops by reason, from a stream's diagnostics."""
    values = status["values"]
    dropped = {
        match[1]: int(value)
        for key, value in values.items()
        if (match := re.fullmatch(r"dropped: (\w+)", key)) and int(value)
    }
    return {**{name: int(values[name]) for name in ("offered", "published", "pending")}, "dropped": dropped}


def _of_classes(truth: Detections, labels: Sequence[str]) -> Truth:
    """The true boxes of these classes, numbered as in `labels`."""
    return Truth.among(labels, truth.boxes, truth.class_ids, truth.labels)
