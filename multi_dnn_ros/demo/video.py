"""A video as a recording that can be replayed, and what the DNNs found in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from rclpy.serialization import serialize_message
from rclpy.time import Time
from std_msgs.msg import Header

from multi_dnn_ros.camera.messages import image_message
from multi_dnn_ros.camera.publisher import DEFAULT_RATE_HZ
from multi_dnn_ros.camera.sources import open_source
from multi_dnn_ros.common.reporting import distribution
from multi_dnn_ros.engine.task import Result
from multi_dnn_ros.replay.message_definitions import canonical
from multi_dnn_ros.replay.replay import FrameOutcome, StreamCount
from multi_dnn_ros.replay.storage_files import BagMessage
from multi_dnn_ros.vision.results import Lanes, boxes_of, results_by_name

_MSGTYPE = "sensor_msgs/msg/CompressedImage"


class VideoMessages:
    """The frames of a video as messages, as :class:`multi_dnn_ros.replay.bag_reader.BagReader` reads them.

    path: a video, an image, or a folder of images. topic: topic of the messages, sensor_msgs/CompressedImage (JPEG).
    frame_id: frame_id of their headers. seconds: how much of the video is read, from its beginning; None: all of it.
    The stamps start at the modification time of the file and advance at the video's rate, or 10 Hz if it has none, so
    that they are the same in every run. frames: expected number, 0 if unknown. damage: problems of the file, known
    after reading. Raises SourceError.
    """

    def __init__(self, path: Path, topic: str, frame_id: str, seconds: float | None = None) -> None:
        self._source = open_source(str(path))
        self._topic, self._frame_id = topic, frame_id
        self._begin_ns = path.stat().st_mtime_ns
        self.rate_hz = self._source.rate_hz or DEFAULT_RATE_HZ
        self._max_frames = None if seconds is None else max(1, round(seconds * self.rate_hz))
        known = self._source.count
        self.frames = known if self._max_frames is None else min(known or self._max_frames, self._max_frames)

    @property
    def damage(self) -> list[str]:
        return self._source.notes

    def messages(self, topics: Collection[str] | None = None) -> Iterator[BagMessage]:
        """The frames in order. topics: ignored, as there is one topic only."""
        for number, item in enumerate(islice(self._source.items(), self._max_frames)):
            stamp_ns = self._begin_ns + round(number * 1e9 / self.rate_hz)
            header = Header(stamp=Time(nanoseconds=stamp_ns).to_msg(), frame_id=self._frame_id)
            data = canonical(_MSGTYPE, serialize_message(image_message(item.image, header, "jpeg")))
            yield BagMessage(self._topic, _MSGTYPE, stamp_ns, data)


class VideoFigures:
    """Collects what each DNN found, frame by frame."""

    def __init__(self) -> None:
        self._names: defaultdict[str, Counter[str]] = defaultdict(Counter)  # number of results by class name
        self._times_ms: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, outcome: FrameOutcome) -> int:
        """Add the results of a frame; returns the number of those that can be counted."""
        total = 0
        for end in outcome.in_order():
            if isinstance(end, Result):
                names = [name for part in results_by_name(end.dnn, end.output).values() for name in found_names(part)]
                self._names[end.dnn].update(names)
                self._times_ms[end.dnn].append((end.timing.finished_ns - end.timing.started_ns) / 1e6)
                total += len(names)
        return total

    def as_json(self, counts: Mapping[tuple[str, str], StreamCount]) -> dict[str, Any]:
        """Accounts, results by class and times of each DNN, by its name.

        `inference_ms`: from the start of each frame's inference to its decoded result.
        """
        content = {}
        for (dnn, _), stream in counts.items():
            content[dnn] = {
                **{name: value for name, value in vars(stream).items() if name not in ("dnn", "camera")},
                "by_class": dict(self._names[dnn].most_common()),
                "inference_ms": distribution(times) if (times := self._times_ms[dnn]) else {},
            }
        return content


def found_names(output: Any) -> list[str]:
    """The class of each box, or "line" for each lane line; empty for what cannot be counted, such as class masks."""
    if (boxes := boxes_of(output)) is not None:
        return [boxes.labels[class_id] for class_id in boxes.class_ids]
    return ["line"] * len(output.lanes) if isinstance(output, Lanes) else []
