"""The publishers of the results of every DNN on every camera."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from rclpy.lifecycle import LifecycleNode
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from multi_dnn_ros.common import extensions
from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.engine.task import Result
from multi_dnn_ros.ros.camera_ground import Project
from multi_dnn_ros.ros.message_types import message_class
from multi_dnn_ros.ros.overlay_publisher import OverlayTopics
from multi_dnn_ros.ros.qos import IMAGES, LATCHED, RESULTS
from multi_dnn_ros.ros.result_messages import LabelInfo, label_info_message
from multi_dnn_ros.vision.result_kind import GroundTopic, ResultKind, Topic
from multi_dnn_ros.vision.results import result_name, results_by_name

#: Returns, for camera, header and (width, height) of an image, header and projection of ground points, or None.
GroundOf = Callable[[str, Header, tuple[int, int]], tuple[Header, Project] | None]


class ResultPublishers:
    """``~/<camera>/<result>/...`` for each DNN and camera, ``~/<camera>/overlay`` with ``/compressed``, and
    ``~/<result>/label_info``.

    The name of a result is `<dnn>`, or `<dnn>/<output>` for a DNN with parameter `outputs`.
    results: kind and class names of each DNN's results, by the name of the output, "" without outputs; class names are
    published if the kind has labels. Each DNN has publishers of its own.

    Raises ExtensionError if the message type of a result kind is not installed.
    """

    def __init__(
        self,
        node: LifecycleNode,
        cameras_by_dnn: Mapping[str, tuple[str, ...]],
        results: Mapping[str, Mapping[str, tuple[ResultKind, tuple[str, ...]]]],
    ) -> None:
        self._node = node
        self._kinds: dict[str, ResultKind] = {}
        self._labels: dict[str, tuple[str, ...]] = {}
        self._publishers: dict[tuple[str, ...], Any] = {}
        self._on_ground: dict[str, list[tuple[str, ...]]] = {}  # publishers of ground topics, by camera
        try:
            self._create(cameras_by_dnn, results)
        except BaseException:
            self.close()
            raise

    def _create(
        self,
        cameras_by_dnn: Mapping[str, tuple[str, ...]],
        results: Mapping[str, Mapping[str, tuple[ResultKind, tuple[str, ...]]]],
    ) -> None:
        for dnn, cameras in cameras_by_dnn.items():
            for output, (kind, labels) in results[dnn].items():
                result = result_name(dnn, output)
                self._kinds[result] = kind
                if kind.has_labels:
                    self._labels[result] = labels
                for camera, topic in product(cameras, kind.topics):
                    qos = IMAGES if topic.picture else RESULTS
                    self._add(self._message_class(kind, topic, result), qos, camera, result, topic.name)
                for camera, ground_topic in product(cameras, kind.ground_topics):
                    key = (camera, result, ground_topic.name)
                    self._add(self._message_class(kind, ground_topic, result), RESULTS, *key)
                    self._on_ground.setdefault(camera, []).append(key)
        for camera in dict.fromkeys(camera for cameras in cameras_by_dnn.values() for camera in cameras):
            self._add(Image, IMAGES, camera, "overlay")
            self._add(CompressedImage, IMAGES, camera, "overlay", "compressed")
        if LabelInfo is not None:
            for result in self._labels:
                self._add(LabelInfo, LATCHED, result, "label_info")

    @property
    def overlays(self) -> dict[str, OverlayTopics]:
        """The overlay publishers of each camera."""
        return {
            key[0]: OverlayTopics(publisher, self._publishers[(*key, "compressed")])
            for key, publisher in self._publishers.items()
            if key[-1] == "overlay"
        }

    @property
    def kinds(self) -> Mapping[str, ResultKind]:
        """The kind of each result, by its name."""
        return self._kinds

    @property
    def ground_cameras(self) -> tuple[str, ...]:
        """The cameras with results that can be published on the ground."""
        return tuple(self._on_ground)

    def wanted_on_ground(self) -> set[str]:
        """The cameras whose results on the ground have a subscription."""
        return {
            camera
            for camera, keys in self._on_ground.items()
            if any(self._publishers[key].get_subscription_count() for key in keys)
        }

    def publish(self, result: Result, ground: GroundOf) -> None:
        """Publish the results of an inference, also empty ones, with the header of its image, on the topics that have a
        subscription. Ground topics get results only if `ground` has a projection for the image.

        Raises TypeError, before anything is published, for a result of another kind than the DNN's.
        """
        header, camera = result.frame.context, result.frame.camera
        found = results_by_name(result.dnn, result.output)
        for name, output in found.items():
            self._kinds[name].check(name, output)
        topics = ((name, topic) for name in found for topic in self._kinds[name].topics)
        for name, topic in sorted(topics, key=lambda entry: entry[1].picture):  # small messages first
            publisher = self._publishers[camera, name, topic.name]
            if publisher.get_subscription_count():
                publisher.publish(topic.message(found[name], header))
        for name, output in found.items():  # last, so that the others do not wait for it
            self._publish_on_ground(result, name, output, ground)

    def _publish_on_ground(self, result: Result, name: str, output: Any, ground: GroundOf) -> None:
        header, camera = result.frame.context, result.frame.camera
        for topic in self._kinds[name].ground_topics:
            publisher = self._publishers[camera, name, topic.name]
            if publisher.get_subscription_count():
                height, width = result.frame.size
                view = ground(camera, header, (width, height))
                if view is not None:
                    publisher.publish(topic.message(output, *view))

    def set_labels(self, result: str, labels: tuple[str, ...]) -> None:
        """The class names of a result have changed; no effect if its kind has none."""
        if result in self._labels:
            self._labels[result] = labels

    def publish_labels(self, result: str, score_threshold: float) -> None:
        """Publish class names and score threshold of a result, latched; does nothing if its kind has no labels.

        To be called after activation, because inactive publishers drop messages, and after changes of the threshold.
        """
        if LabelInfo is None or result not in self._labels:
            return
        header = Header(stamp=self._node.get_clock().now().to_msg())
        message = label_info_message(self._labels[result], score_threshold, header)
        self._publishers[result, "label_info"].publish(message)

    def close(self) -> None:
        """Destroy the publishers."""
        for publisher in self._publishers.values():
            self._node.destroy_lifecycle_publisher(publisher)
        self._publishers.clear()

    def _add(self, kind: type, qos: Any, *path: str) -> None:
        self._publishers[path] = self._node.create_lifecycle_publisher(kind, f"~/{'/'.join(path)}", qos)

    def _message_class(self, kind: ResultKind, topic: Topic | GroundTopic, result: str) -> type:
        """The class of the topic's messages. Also imports the function that makes them, so that its errors are seen
        now.
        """
        name = f"topic {topic.name} of {extensions.display_name(extensions.RESULT_KINDS, kind.name)}"
        try:
            function: object = topic.message
            message: type = message_class(topic.msgtype)
        except (Exception, SystemExit) as error:  # whatever a module of another package raises
            raise ExtensionError(f"DNN {result}: {name} cannot be published: {summarize_error(error)}") from error
        if not callable(function):
            raise ExtensionError(f"DNN {result}: {name} cannot be published: {function!r} is not a function")
        return message
