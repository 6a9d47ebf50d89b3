"""Results out: the publishers of every DNN on every camera."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rclpy.lifecycle import LifecycleNode
from sensor_msgs.msg import Image, PointCloud2
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.engine.task import Result
from multi_dnn_ros.ros.qos import LATCHED, PICTURES, RESULTS
from multi_dnn_ros.ros.result_messages import (
    LabelInfo,
    detections_message,
    label_info_message,
    lane_mask_message,
    lane_points_message,
)
from multi_dnn_ros.vision.results import Lanes

_LANE_MESSAGES = {"points": lane_points_message, "mask": lane_mask_message}
_DETECTION_MESSAGES = {"detections": detections_message}


class ResultPublishers:
    """``~/<camera>/<dnn>/...`` for each stream, ``~/<camera>/overlay``, and ``~/<dnn>/label_info``.

    streams: cameras of each DNN. lanes: the DNNs whose role is lane. labels: class names of each DNN that has any.
    Publishing is called from the DNNs' threads; each has publishers of its own.
    """

    def __init__(
        self,
        node: LifecycleNode,
        streams: Mapping[str, tuple[str, ...]],
        lanes: frozenset[str],
        labels: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._node = node
        self._labels = labels
        self._publishers: dict[tuple[str, ...], Any] = {}
        for dnn, cameras in streams.items():
            for camera in cameras:
                if dnn in lanes:
                    self._add(Image, PICTURES, camera, dnn, "mask")
                    self._add(PointCloud2, RESULTS, camera, dnn, "points")
                else:
                    self._add(Detection2DArray, RESULTS, camera, dnn, "detections")
        for camera in dict.fromkeys(camera for cameras in streams.values() for camera in cameras):
            self._add(Image, PICTURES, camera, "overlay")
        if LabelInfo is not None:
            for dnn in labels:
                self._add(LabelInfo, LATCHED, dnn, "label_info")

    @property
    def overlays(self) -> dict[str, Any]:
        """The overlay publisher of each camera."""
        return {key[0]: publisher for key, publisher in self._publishers.items() if key[-1] == "overlay"}

    def publish(self, result: Result) -> None:
        """Publish one result, empty ones too, with the header of its image, on the topics that have a subscription."""
        lanes = isinstance(result.output, Lanes)
        messages = _LANE_MESSAGES if lanes else _DETECTION_MESSAGES  # small ones first
        for topic, message in messages.items():
            publisher = self._publishers[result.frame.camera, result.dnn, topic]
            if publisher.get_subscription_count():
                publisher.publish(message(result.output, result.frame.context))

    def publish_labels(self, dnn: str, score_threshold: float) -> None:
        """Class names and score threshold of a DNN, kept for late subscribers; nothing for a lane DNN.

        Called after activating and when the threshold has changed. An inactive publisher drops what it is given.
        """
        if LabelInfo is None or dnn not in self._labels:
            return
        header = Header(stamp=self._node.get_clock().now().to_msg())
        message = label_info_message(self._labels[dnn], score_threshold, header)
        self._publishers[dnn, "label_info"].publish(message)

    def close(self) -> None:
        for publisher in self._publishers.values():
            self._node.destroy_lifecycle_publisher(publisher)
        self._publishers.clear()

    def _add(self, kind: type, qos: Any, *path: str) -> None:
        self._publishers[path] = self._node.create_lifecycle_publisher(kind, f"~/{'/'.join(path)}", qos)
