"""A video as a recording that can be replayed: its frames as compressed images of one camera."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

from rclpy.serialization import serialize_message
from rclpy.time import Time
from std_msgs.msg import Header

from multi_dnn_ros.camera.messages import image_message
from multi_dnn_ros.camera.publisher import DEFAULT_RATE_HZ
from multi_dnn_ros.camera.sources import open_source
from multi_dnn_ros.replay.message_definitions import canonical
from multi_dnn_ros.replay.storage_files import BagMessage

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
