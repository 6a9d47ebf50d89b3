"""The publishers of the results of every DNN on every camera."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rclpy.lifecycle import LifecycleNode
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from multi_dnn_ros.common.error_text import summarize_error
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.engine.task import Result
from multi_dnn_ros.ros.message_types import message_class
from multi_dnn_ros.ros.overlay_publisher import OverlayTopics
from multi_dnn_ros.ros.qos import IMAGES, LATCHED, RESULTS
from multi_dnn_ros.ros.result_messages import LabelInfo, label_info_message
from multi_dnn_ros.vision.result_kind import ResultKind, Topic


class ResultPublishers:
    """``~/<camera>/<dnn>/...`` for each stream, ``~/<camera>/overlay`` with ``/compressed``, and
    ``~/<dnn>/label_info``.

    streams: cameras of each DNN. kinds: result kind of each DNN. labels: class names of each DNN; published if its
    result kind has labels. Each DNN publishes from a thread of its own, with publishers of its own.
    Raises ExtensionError if the message type of a result kind is not installed.
    """

    def __init__(
        self,
        node: LifecycleNode,
        streams: Mapping[str, tuple[str, ...]],
        kinds: Mapping[str, ResultKind],
        labels: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._node = node
        self._kinds = kinds
        self._labels = {dnn: names for dnn, names in labels.items() if kinds[dnn].has_labels}
        self._publishers: dict[tuple[str, ...], Any] = {}
        for dnn, cameras in streams.items():
            for camera in cameras:
                for topic in kinds[dnn].topics:
                    qos = IMAGES if topic.picture else RESULTS
                    self._add(_message_class(kinds[dnn], topic, dnn), qos, camera, dnn, topic.name)
        for camera in dict.fromkeys(camera for cameras in streams.values() for camera in cameras):
            self._add(Image, IMAGES, camera, "overlay")
            self._add(CompressedImage, IMAGES, camera, "overlay", "compressed")
        if LabelInfo is not None:
            for dnn in self._labels:
                self._add(LabelInfo, LATCHED, dnn, "label_info")

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
        """The result kind of each DNN."""
        return self._kinds

    def publish(self, result: Result) -> None:
        """Publish one result, also an empty one, with the header of its image, on the topics that have a subscription.

        Raises TypeError for a result of another kind than the DNN's.
        """
        header, camera, dnn = result.frame.context, result.frame.camera, result.dnn
        kind = self._kinds[dnn]
        kind.check(dnn, result.output)
        for topic in sorted(kind.topics, key=lambda topic: topic.picture):  # small messages first
            publisher = self._publishers[camera, dnn, topic.name]
            if publisher.get_subscription_count():
                publisher.publish(topic.message(result.output, header))

    def publish_labels(self, dnn: str, score_threshold: float) -> None:
        """Publish class names and score threshold of a DNN, latched; does nothing if its result kind has no labels.

        To be called after activation, because inactive publishers drop messages, and after changes of the threshold.
        """
        if LabelInfo is None or dnn not in self._labels:
            return
        header = Header(stamp=self._node.get_clock().now().to_msg())
        message = label_info_message(self._labels[dnn], score_threshold, header)
        self._publishers[dnn, "label_info"].publish(message)

    def close(self) -> None:
        """Destroy the publishers."""
        for publisher in self._publishers.values():
            self._node.destroy_lifecycle_publisher(publisher)
        self._publishers.clear()

    def _add(self, kind: type, qos: Any, *path: str) -> None:
        self._publishers[path] = self._node.create_lifecycle_publisher(kind, f"~/{'/'.join(path)}", qos)


def _message_class(kind: ResultKind, topic: Topic, dnn: str) -> type:
    """The class of the topic's messages. Also imports the function that makes them, so that its errors are seen now."""
    try:
        assert callable(topic.message)
        message: type = message_class(topic.msgtype)
    except Exception as error:  # a module of another package may raise anything
        raise ExtensionError(
            f"DNN {dnn}: topic {topic.name} of result kind '{kind.name}' cannot be published: {summarize_error(error)}"
        ) from error
    return message
