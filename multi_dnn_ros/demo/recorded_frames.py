"""The recorded messages of a demo, grouped by frame stamp, and the figures of each DNN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.serialization import deserialize_message

from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.ros.result_messages import class_names, message_class
from multi_dnn_ros.training.metrics import LaneScore, Truth, score_detections
from multi_dnn_ros.training.scenes import LABELS
from multi_dnn_ros.vision.image_decoding import ImageSettings, decode_compressed, decode_image
from multi_dnn_ros.vision.result_kind import ResultKind
from multi_dnn_ros.vision.results import Decoded, Detections, Lane, Lanes, boxes_of

_SETTINGS = ImageSettings("front", 1 << 24)
_WINDOW = 50
#: Class names of the true detections, by class_id.
_TRUE_NAMES = {str(number): name for number, name in enumerate(LABELS)}


@dataclass(frozen=True)
class Stream:
    """The results of one DNN. topics: its topics by name: `detections`, or `mask` and `points`.

    labels: the evaluated classes of its detections. label_info: topic of its class names.
    """

    dnn: str
    kind: ResultKind
    topics: Mapping[str, str]
    labels: tuple[str, ...] = ()
    label_info: str = ""


@dataclass
class RecordedFrame:
    """One frame. image: (H, W, 3) uint8 RGB. lane_mask: (H, W) uint8, the true one. results: by DNN, some may be
    missing, with the milliseconds from stamp to receipt.
    """

    stamp_ns: int
    image: npt.NDArray[np.uint8]
    truth: Detections | None = None
    lane_mask: npt.NDArray[np.uint8] | None = None
    results: dict[str, tuple[Decoded, float]] = field(default_factory=dict)


def found_names(output: Any) -> list[str]:
    """The class of each box, or "line" for each lane line; empty for what cannot be counted, such as class masks."""
    if (boxes := boxes_of(output)) is not None:
        return [boxes.labels[class_id] for class_id in boxes.class_ids]
    return ["line"] * len(output.lanes) if isinstance(output, Lanes) else []


def recorded_frames(bag: BagReader, camera: str, image: str, streams: Sequence[Stream]) -> Iterator[RecordedFrame]:
    """Every frame with a recorded image, in the order of the stamps. image: topic of the images, as CompressedImage.

    Frames wait for their results until 50 newer ones have arrived.
    """
    truth, lane_mask = f"/{camera}/truth/detections", f"/{camera}/truth/lane_mask"
    names: dict[str, Mapping[str, str]] = {}  # class names by class_id, for each LabelInfo topic
    for recorded in bag.messages({stream.label_info for stream in streams} & bag.topics.keys()):
        names[recorded.topic] = class_names(deserialize_message(recorded.data, message_class(recorded.msgtype)))

    def frame(stamp_ns: int, parts: Mapping[str, tuple[Any, int]]) -> Iterator[RecordedFrame]:
        if image not in parts:
            return
        found = RecordedFrame(stamp_ns, decode_compressed(parts[image][0], _SETTINGS))
        if truth in parts:
            found.truth = detections(parts[truth][0], LABELS, _TRUE_NAMES)
        if lane_mask in parts:
            found.lane_mask = _mono(parts[lane_mask][0])
        for stream in streams:
            if not parts.keys() >= set(stream.topics.values()):
                continue
            message = {name: parts[topic][0] for name, topic in stream.topics.items()}
            if "mask" in message:
                output: Decoded = lanes(message["mask"], message["points"])
            elif stream.label_info in names:
                output = detections(message["detections"], stream.labels, names[stream.label_info])
            else:
                raise LookupError(f"the recording holds no class names ({stream.label_info}) of DNN {stream.dnn}")
            received_ns = max(parts[topic][1] for topic in stream.topics.values())
            found.results[stream.dnn] = output, (received_ns - stamp_ns) / 1e6
        yield found

    wanted = {image, truth, lane_mask, *(topic for stream in streams for topic in stream.topics.values())}
    pending: dict[int, dict[str, tuple[Any, int]]] = {}  # by stamp and topic: a message, and when it was received
    for recorded in bag.messages(wanted & bag.topics.keys()):
        message = deserialize_message(recorded.data, message_class(recorded.msgtype))
        stamp_ns = message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
        pending.setdefault(stamp_ns, {})[recorded.topic] = message, recorded.stamp_ns
        if len(pending) > _WINDOW:
            oldest = min(pending)
            yield from frame(oldest, pending.pop(oldest))
    for stamp_ns in sorted(pending):
        yield from frame(stamp_ns, pending[stamp_ns])


@dataclass
class DnnFigures:
    """Figures of one DNN, collected frame by frame."""

    stream: Stream
    latencies_ms: list[float] = field(default_factory=list)
    stamps_ns: list[int] = field(default_factory=list)
    found: list[Detections] = field(default_factory=list)
    truths: list[Truth] = field(default_factory=list)
    lanes: LaneScore = field(default_factory=LaneScore)

    def add(self, frame: RecordedFrame) -> None:
        """Count, time and score the result of the DNN for a frame, if there is one."""
        if self.stream.dnn not in frame.results:
            return
        output, latency_ms = frame.results[self.stream.dnn]
        self.latencies_ms.append(latency_ms)
        self.stamps_ns.append(frame.stamp_ns)
        if isinstance(output, Lanes) and frame.lane_mask is not None:
            self.lanes.add(output.mask, frame.lane_mask)
        elif isinstance(output, Detections) and frame.truth is not None:
            truth = frame.truth
            self.found.append(output)
            self.truths.append(Truth(truth.boxes, truth.class_ids).among(truth.labels, self.stream.labels))

    def summary(self) -> dict[str, Any]:
        """Rate from the stamps of the frames with results; latency from stamp to receipt; scores."""
        summary: dict[str, Any] = {"frames": len(self.stamps_ns)}
        if len(self.stamps_ns) > 1:
            span_s = (max(self.stamps_ns) - min(self.stamps_ns)) / 1e9
            summary["rate_hz"] = (len(self.stamps_ns) - 1) / span_s if span_s > 0 else 0.0
        if self.latencies_ms:
            summary["latency_ms"] = distribution(self.latencies_ms)
        if self.lanes.true or self.lanes.predicted:
            summary |= {f"lane_{name}": value for name, value in self.lanes.scores().items()}
        if true_boxes := sum(len(truth.boxes) for truth in self.truths):
            summary["true_boxes"] = true_boxes
            summary |= score_detections(zip(self.found, self.truths, strict=True), self.stream.labels)
        return summary


def detections(message: Any, labels: Sequence[str], names: Mapping[str, str]) -> Detections:
    """Convert a Detection2DArray; classes that are not in `labels` are skipped.

    names: class names by class_id, as in the DNN's LabelInfo. Raises KeyError for an unknown class_id.
    """
    rows = []
    for found in message.detections:
        hypothesis = found.results[0].hypothesis
        name = names[hypothesis.class_id]
        if name in labels:
            x, y = found.bbox.center.position.x, found.bbox.center.position.y
            w, h = found.bbox.size_x / 2, found.bbox.size_y / 2
            rows.append((x - w, y - h, x + w, y + h, hypothesis.score, labels.index(name)))
    table = np.array(rows, np.float64).reshape(-1, 6)
    boxes, scores = table[:, :4].astype(np.float32), table[:, 4].astype(np.float32)
    return Detections(boxes, scores, table[:, 5].astype(np.int64), tuple(labels))


def lanes(mask: Any, points: Any) -> Lanes:
    """Convert a mono8 mask and a cloud of (u, v, lane, score) float32 points to lane lines."""
    table = np.frombuffer(bytes(points.data), "<f4").reshape(-1, 4)
    lines = []
    for number in np.unique(table[:, 2]):
        rows = table[table[:, 2] == number]
        lines.append(Lane(int(number), rows[:, :2].astype(np.float32), np.zeros(3), float(rows[0, 3])))
    return Lanes(_mono(mask), tuple(lines))


def _mono(message: Any) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(decode_image(message, _SETTINGS)[:, :, 0])
