"""Records topics into a bag as messages arrive; the recording time is the time of receipt."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image

from multi_dnn_ros.camera.messages import image_message
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.ros.result_messages import LATCHED, message_class
from multi_dnn_ros.vision.image_decoding import ImageSettings, decode_image

#: Reliable, with enough depth that nothing is lost while a large message is written.
_QOS = QoSProfile(depth=50)
_SETTINGS = ImageSettings("front", 1 << 24)
#: 27 s of 640x480 at 10 Hz.
_KEPT_BYTES = 256 << 20


class Recorder:
    """Subscribes to `topics` (name to type) and writes every message.

    image: topic of raw images that are written as JPEG on ``<image>/compressed``, a tenth of the size. Compressing
    takes the processor time that the measured node needs, so it is left for :meth:`flush` up to _KEPT_BYTES of images.
    latched: topics whose publishers keep their last message for late subscribers.

    Single-threaded: spin the node with a single-threaded executor.
    """

    def __init__(
        self, node: Node, writer: BagWriter, topics: Mapping[str, str], *, image: str,
        latched: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.counts: Counter[str] = Counter()
        self._image = image
        self._clock, self._writer = node.get_clock(), writer
        self._kept: deque[tuple[int, bytes]] = deque()  # time of receipt, image
        self._kept_bytes = 0
        writer.add_topic(f"{image}/compressed", "sensor_msgs/msg/CompressedImage")
        for topic, msgtype in topics.items():
            if topic != image:
                writer.add_topic(topic, msgtype, latched=topic in latched)
            qos = LATCHED if topic in latched else _QOS
            node.create_subscription(message_class(msgtype), topic, self._receiver(topic), qos, raw=True)

    def flush(self) -> None:
        """Compress and write the images that are still kept."""
        while self._kept:
            self._write_oldest()

    def _receiver(self, topic: str) -> Callable[[bytes], None]:
        def receive(data: bytes) -> None:
            stamp_ns = int(self._clock.now().nanoseconds)
            self.counts[topic] += 1
            if topic != self._image:
                self._writer.write(topic, stamp_ns, data)
                return
            self._kept.append((stamp_ns, data))
            self._kept_bytes += len(data)
            while self._kept_bytes > _KEPT_BYTES:
                self._write_oldest()

        return receive

    def _write_oldest(self) -> None:
        stamp_ns, data = self._kept.popleft()
        self._kept_bytes -= len(data)
        message: Any = deserialize_message(data, Image)
        jpeg = image_message(np.asarray(decode_image(message, _SETTINGS)), message.header, "jpeg")
        self._writer.write(f"{self._image}/compressed", stamp_ns, bytes(serialize_message(jpeg)))
