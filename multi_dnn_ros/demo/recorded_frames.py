"""The recorded messages of a demo, grouped by frame stamp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.serialization import deserialize_message

from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.ros.message_types import message_class
from multi_dnn_ros.ros.result_messages import class_names
from multi_dnn_ros.vision.image_decoding import ImageSettings, decode_compressed, decode_image
from multi_dnn_ros.vision.result_kind import ResultKind
from multi_dnn_ros.vision.results import Decoded, Detections, Lane, Lanes

_SETTINGS = ImageSettings("front", 1 << 24)


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


@dataclass(frozen=True)
class CameraTopics:
    """The topics of a recording that hold the images (as CompressedImage) and the ground truth.

    truth_labels: class names of the true detections, by class number.
    """

    image: str
    truth_detections: str
    truth_lane_mask: str
    truth_labels: tuple[str, ...]


@dataclass(frozen=True)
class RecordedResult:
    """Result of a DNN for a frame. output: type as its result kind defines. latency_ms: from stamp to receipt."""

    output: Any
    latency_ms: float


@dataclass
class RecordedFrame:
    """One frame. image: (H, W, 3) uint8 RGB. lane_mask: (H, W) uint8. results: by DNN; some may be missing."""

    stamp_ns: int
    image: npt.NDArray[np.uint8] | None = None
    truth: Detections | None = None
    lane_mask: npt.NDArray[np.uint8] | None = None
    results: dict[str, RecordedResult] = field(default_factory=dict)


def recorded_frames(
    bag: BagReader, camera: CameraTopics, streams: Sequence[Stream], window: int = 50
) -> Iterator[RecordedFrame]:
    """Every frame with a recorded image, in the order of the stamps.

    window: number of frames that wait for results; results that arrive later are not used.
    """
    readers = {camera.image: "image", camera.truth_detections: "truth", camera.truth_lane_mask: "lane_mask"}
    by_topic = {topic: (stream, name) for stream in streams for name, topic in stream.topics.items()}
    pending: dict[int, RecordedFrame] = {}
    first_parts: dict[tuple[str, int], Any] = {}  # mask or points of a lane DNN, whichever arrived first
    names = recorded_class_names(bag, [stream.label_info for stream in streams if stream.label_info])
    true_names = {str(number): name for number, name in enumerate(camera.truth_labels)}
    for recorded in bag.messages([topic for topic in (*readers, *by_topic) if topic in bag.topics]):
        message = deserialize_message(recorded.data, message_class(recorded.msgtype))
        stamp_ns = message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
        frame = pending.setdefault(stamp_ns, RecordedFrame(stamp_ns))
        if recorded.topic == camera.image:
            frame.image = decode_compressed(message, _SETTINGS)
        elif recorded.topic == camera.truth_detections:
            frame.truth = detections(message, camera.truth_labels, true_names)
        elif recorded.topic == camera.truth_lane_mask:
            frame.lane_mask = _mono(message)
        else:
            stream, name = by_topic[recorded.topic]
            output: Decoded | None = None
            if name == "detections":
                if stream.label_info not in names:
                    raise LookupError(f"the recording holds no class names ({stream.label_info}) of DNN {stream.dnn}")
                output = detections(message, stream.labels, names[stream.label_info])
            else:
                other = first_parts.pop((stream.dnn, stamp_ns), None)
                if other is None:
                    first_parts[stream.dnn, stamp_ns] = message
                else:
                    output = lanes(*((message, other) if name == "mask" else (other, message)))
            if output is not None:
                frame.results[stream.dnn] = RecordedResult(output, (recorded.stamp_ns - stamp_ns) / 1e6)
        if len(pending) > window:
            oldest = pending.pop(min(pending))
            if oldest.image is not None:
                yield oldest
    yield from (pending[stamp_ns] for stamp_ns in sorted(pending) if pending[stamp_ns].image is not None)


def recorded_class_names(bag: BagReader, topics: Sequence[str]) -> dict[str, dict[str, str]]:
    """Class names by class_id, for each LabelInfo topic with recorded messages."""
    names = {}
    for recorded in bag.messages([topic for topic in topics if topic in bag.topics]):
        names[recorded.topic] = class_names(deserialize_message(recorded.data, message_class(recorded.msgtype)))
    return names


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
    return Detections(
        boxes=table[:, :4].astype(np.float32),
        scores=table[:, 4].astype(np.float32),
        class_ids=table[:, 5].astype(np.int64),
        labels=tuple(labels),
    )


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
