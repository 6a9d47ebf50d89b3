"""The publishers of the results of every DNN on every camera."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from rclpy.lifecycle import LifecycleNode
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header
from vision_msgs.msg import LabelInfo

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.engine.task import Result
from multi_dnn_ros.ros.ground import Project
from multi_dnn_ros.ros.result_messages import (
    IMAGES,
    LATCHED,
    RESULTS,
    image_message,
    jpeg_message,
    label_info_message,
    message_class,
)
from multi_dnn_ros.vision.result_kind import GroundTopic, ResultKind, Topic
from multi_dnn_ros.vision.results import result_name, results_by_name


class ResultPublishers:
    """``~/<camera>/<result>/...``, ``~/<camera>/overlay``, its ``/compressed`` form, ``~/<result>/label_info``.

    The name of a result is `<dnn>`, or `<dnn>/<output>` for a DNN with parameter `outputs`. kinds: of each DNN's
    results, by output ("" without outputs). Raises ExtensionError if a message type is not installed.
    """

    def __init__(
        self,
        node: LifecycleNode,
        cameras_by_dnn: Mapping[str, tuple[str, ...]],
        kinds: Mapping[str, Mapping[str, ResultKind]],
    ) -> None:
        self._node = node
        #: The kind of each result, by its name.
        self.kinds: dict[str, ResultKind] = {}
        self._publishers: dict[tuple[str, ...], Any] = {}
        #: Publishers of results on the ground, by camera.
        self.on_ground: dict[str, list[Any]] = {}
        try:
            for dnn, cameras in cameras_by_dnn.items():
                for output, kind in kinds[dnn].items():
                    self._add_result(result_name(dnn, output), kind, cameras)
        except BaseException:
            self.close()
            raise
        for camera in dict.fromkeys(camera for cameras in cameras_by_dnn.values() for camera in cameras):
            self._add(Image, IMAGES, camera, "overlay")
            self._add(CompressedImage, IMAGES, camera, "overlay", "compressed")

    def _add_result(self, result: str, kind: ResultKind, cameras: tuple[str, ...]) -> None:
        self.kinds[result] = kind
        if kind.has_labels:
            self._add(LabelInfo, LATCHED, result, "label_info")
        for camera in cameras:
            for topic in kind.topics:
                qos = IMAGES if topic.picture else RESULTS
                self._add(_message_class(kind, topic, result), qos, camera, result, topic.name)
            for ground in kind.ground_topics:
                publisher = self._add(_message_class(kind, ground, result), RESULTS, camera, result, ground.name)
                self.on_ground.setdefault(camera, []).append(publisher)

    def _add(self, kind: type, qos: Any, *path: str) -> Any:
        publisher = self._node.create_lifecycle_publisher(kind, f"~/{'/'.join(path)}", qos)
        self._publishers[path] = publisher
        return publisher

    def wanted_on_ground(self) -> set[str]:
        """The cameras whose results on the ground have a subscription."""
        return {camera for camera, found in self.on_ground.items() if any(it.get_subscription_count() for it in found)}

    def publish(self, result: Result, ground: Callable[..., tuple[Header, Project] | None]) -> None:
        """Publish the results of an inference, also empty ones, on the topics that have a subscription. ground: returns
        header and projection, or None. Raises TypeError, before anything is published, for results of another kind.
        """
        header, camera = result.frame.context, result.frame.camera
        found = results_by_name(result.dnn, result.output)
        for name, output in found.items():
            self.kinds[name].check(name, output)
        for name, output in found.items():
            topics = sorted(self.kinds[name].topics, key=lambda topic: topic.picture)  # small messages first
            for topic in topics:
                if publisher := self._wanted(camera, name, topic.name):
                    publisher.publish(topic.message(output, header))
            for ground_topic in self.kinds[name].ground_topics:
                if publisher := self._wanted(camera, name, ground_topic.name):
                    height, width = result.frame.size
                    if (view := ground(camera, header, (width, height))) is not None:
                        publisher.publish(ground_topic.message(output, *view))

    def _wanted(self, *path: str) -> Any:
        """The publisher if its topic has a subscription, otherwise None."""
        publisher = self._publishers[path]
        return publisher if publisher.get_subscription_count() else None

    def is_overlay_wanted(self, camera: str) -> bool:
        """Whether the overlay of a camera has a subscription, raw or compressed."""
        return bool(self._wanted(camera, "overlay") or self._wanted(camera, "overlay", "compressed"))

    def publish_overlay(self, camera: str, pixels: npt.NDArray[np.uint8], header: Header) -> None:
        """Publish (H, W, 3) uint8 RGB on the topics of the overlay that have a subscription."""
        if raw := self._wanted(camera, "overlay"):
            raw.publish(image_message(pixels, "rgb8", header))
        if compressed := self._wanted(camera, "overlay", "compressed"):
            compressed.publish(jpeg_message(pixels, header))

    def publish_labels(self, result: str, labels: tuple[str, ...], score_threshold: float) -> None:
        """Publish class names and score threshold of a result, latched; does nothing if its kind has no labels.

        To be called after activation, because inactive publishers drop messages, and after changes of the two.
        """
        if self.kinds[result].has_labels:
            header = Header(stamp=self._node.get_clock().now().to_msg())
            self._publishers[result, "label_info"].publish(label_info_message(labels, score_threshold, header))

    def close(self) -> None:
        """Destroy the publishers."""
        for publisher in self._publishers.values():
            self._node.destroy_lifecycle_publisher(publisher)
        self._publishers.clear()


def _message_class(kind: ResultKind, topic: Topic | GroundTopic, result: str) -> Any:
    """The class of the topic's messages. Also imports the function that makes them, so that its errors are seen now."""
    try:
        if callable(topic.message):
            return message_class(topic.msgtype)
        raise TypeError(f"{topic.message!r} is not a function")
    except (Exception, SystemExit) as error:  # whatever a module of another package raises
        name = f"topic {topic.name} of {extensions.display_name(extensions.RESULT_KINDS, kind.name)}"
        raise ExtensionError(f"DNN {result}: {name} cannot be published: {summarize_error(error)}") from error
