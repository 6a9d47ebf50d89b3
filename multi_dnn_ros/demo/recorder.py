"""Records topics into a bag as messages arrive; the recording time is the time of receipt."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image

from multi_dnn_ros.camera.messages import image_message
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.ros.message_types import message_class
from multi_dnn_ros.ros.qos import LATCHED
from multi_dnn_ros.vision.image_decoding import ImageSettings, decode_image

#: Reliable, with enough depth that nothing is lost while a large message is written.
_QOS = QoSProfile(depth=50)
_SETTINGS = ImageSettings("front", 1 << 24)
#: 27 s of 640x480 at 10 Hz.
_KEPT_BYTES = 256 << 20


class Recorder:
    """Subscribes to `topics` (name to type) and writes every message.

    compress: image topics to write as JPEG on ``<topic>/compressed``, a tenth of the size. Compressing takes the
    processor time that the measured node needs, so it is left for :meth:`flush` as long as the images need less than
    `kept_bytes` of memory. watch: a topic whose latest message is stored in :attr:`watched` and does not count as
    activity. latched: topics whose publishers keep their last message for late subscribers.

    Single-threaded: spin the node with a single-threaded executor.
    """

    def __init__(
        self,
        node: Node,
        writer: BagWriter,
        topics: Mapping[str, str],
        *,
        compress: frozenset[str],
        watch: str,
        latched: frozenset[str] = frozenset(),
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.last_activity_s = time.monotonic()  # time of the last message that was not on the watched topic
        self.watched: bytes | None = None
        self._watch = watch
        self._node = node
        self._writer = writer
        self._kept: deque[tuple[str, int, bytes]] = deque()  # topic, time of receipt, image
        self._kept_bytes, self._max_kept_bytes = 0, kept_bytes
        self._subscriptions = []
        for topic, msgtype in topics.items():
            jpeg = topic in compress
            writer.add_topic(
                *((f"{topic}/compressed", "sensor_msgs/msg/CompressedImage") if jpeg else (topic, msgtype)),
                latched=topic in latched,
            )
            qos = LATCHED if topic in latched else _QOS
            self._subscriptions.append(
                node.create_subscription(message_class(msgtype), topic, self._receiver(topic, jpeg), qos, raw=True)
            )

    def _receiver(self, topic: str, jpeg: bool) -> Callable[[bytes], None]:
        def receive(data: bytes) -> None:
            stamp_ns = int(self._node.get_clock().now().nanoseconds)
            if jpeg:
                self._keep(f"{topic}/compressed", stamp_ns, data)
            else:
                self._writer.write(topic, stamp_ns, data)
            self.counts[topic] += 1
            if topic == self._watch:
                self.watched = data
            else:
                self.last_activity_s = time.monotonic()

        return receive

    def flush(self) -> None:
        """Compress and write the images that are still kept."""
        while self._kept:
            self._write_oldest()

    def _keep(self, topic: str, stamp_ns: int, data: bytes) -> None:
        self._kept.append((topic, stamp_ns, data))
        self._kept_bytes += len(data)
        while self._kept_bytes > self._max_kept_bytes:
            self._write_oldest()

    def _write_oldest(self) -> None:
        topic, stamp_ns, data = self._kept.popleft()
        self._kept_bytes -= len(data)
        self._writer.write(topic, stamp_ns, _as_jpeg(data))


def _as_jpeg(data: bytes) -> bytes:
    message: Any = deserialize_message(data, Image)
    pixels = np.asarray(decode_image(message, _SETTINGS))
    return bytes(serialize_message(image_message(pixels, message.header, "jpeg")))
