"""A camera's topics: images, and ground truth for generated scenes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import QoSProfile, qos_profile_sensor_data, qos_profile_system_default
from rclpy.time import Time
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.camera.encodings import resize
from multi_dnn_ros.camera.messages import CameraFormat, image_message, truth_labels_message, truth_message
from multi_dnn_ros.camera.source import SourceError, SourceImage
from multi_dnn_ros.ros.qos import LATCHED
from multi_dnn_ros.ros.result_messages import LabelInfo
from multi_dnn_ros.ros.result_messages import image_message as mono_message

QOS: dict[str, QoSProfile] = {
    "sensor_data": qos_profile_sensor_data,
    "system_default": qos_profile_system_default,
    "default": QoSProfile(depth=10),
    "reliable": QoSProfile(depth=10),
}
_SETTLE_S = 0.5


class CameraPublisher:
    """Publishes on `format.topic`; optionally ground truth on `<truth_prefix>/detections` and
    `<truth_prefix>/lane_mask`, with the class names of the detections latched on `<truth_prefix>/label_info`.

    Create it after ``rclpy.init``.
    """

    def __init__(
        self,
        node: Node,
        camera_format: CameraFormat,
        truth_prefix: str | None = None,
    ) -> None:
        self.format = camera_format
        profile = QOS[camera_format.qos]
        kind = CompressedImage if camera_format.compressed else Image
        self._images = node.create_publisher(kind, camera_format.topic, profile)
        self._truth: tuple[Any, Any] | None = None
        if truth_prefix is not None:
            self._truth = (
                node.create_publisher(Detection2DArray, f"{truth_prefix}/detections", profile),
                node.create_publisher(Image, f"{truth_prefix}/lane_mask", profile),
            )
            if LabelInfo is not None:
                labels = node.create_publisher(LabelInfo, f"{truth_prefix}/label_info", LATCHED)
                labels.publish(truth_labels_message(Header(stamp=node.get_clock().now().to_msg())))

    @property
    def topic(self) -> str:
        """Resolved topic of the images."""
        return str(self._images.topic_name)

    def wait_for_subscribers(self, count: int, timeout_s: float, running: Callable[[], bool] = lambda: True) -> None:
        """Wait for `count` subscriptions to the images, and one to each topic of the ground truth.

        Does not wait if `count` is 0. Raises TimeoutError, which names the topic without enough subscriptions.
        """
        if count == 0:
            return
        deadline = time.monotonic() + timeout_s
        wanted = [(self._images, count), *((publisher, 1) for publisher in self._truth or ())]
        while running():
            missing = [(publisher, need) for publisher, need in wanted if publisher.get_subscription_count() < need]
            if not missing:
                # DDS matches both sides independently: a subscriber may discover us some milliseconds later.
                time.sleep(_SETTLE_S)
                return
            if time.monotonic() > deadline:
                publisher, need = missing[0]
                raise TimeoutError(
                    f"{publisher.get_subscription_count()} of {need} subscribers on {publisher.topic_name} "
                    f"after {timeout_s:g} s"
                )
            time.sleep(0.02)

    def publish(self, item: SourceImage, stamp_ns: int) -> None:
        """Publish an image and its ground truth with one stamp."""
        header = Header(stamp=Time(nanoseconds=stamp_ns).to_msg(), frame_id=self.format.frame_id)
        pixels = item.image if self.format.size is None else resize(item.image, self.format.size)
        message = image_message(pixels, header, self.format)
        self._images.publish(message)
        if self._truth is not None:
            if item.scene is None:
                raise SourceError("only generated scenes have a ground truth to publish")
            detections, lane_mask = self._truth
            detections.publish(truth_message(item.scene, header))
            lane_mask.publish(mono_message(item.scene.lane_mask, "mono8", header))

    def flush(self, timeout_s: float) -> bool:
        """Wait until every reliable subscriber has received everything; False on timeout."""
        deadline = time.monotonic() + timeout_s
        done = True
        for publisher in (self._images, *(self._truth or ())):
            left_s = max(0.0, deadline - time.monotonic())
            done = publisher.wait_for_all_acked(Duration(seconds=left_s)) and done
        return done
