"""Plays a source on a camera's topics: images and, for generated scenes, their ground truth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray, LabelInfo

from multi_dnn_ros.camera.messages import COMPRESSED, image_message, truth_message
from multi_dnn_ros.camera.sources import Source, SourceImage
from multi_dnn_ros.ros.result_messages import LATCHED, label_info_message
from multi_dnn_ros.ros.result_messages import image_message as mono_message

DEFAULT_RATE_HZ = 10.0
#: Reliable and volatile: compatible with all subscriptions except transient-local ones.
_QOS = QoSProfile(depth=10)


class CameraPublisher:
    """Publishes on `topic`; with `truth`, a prefix, ground truth on `<truth>/detections` and `<truth>/lane_mask`, with
    the class names of the detections latched on `<truth>/label_info`.

    encoding: see image_message. size: (width, height) in pixels to which images are stretched; None keeps their size.
    frame_id: that of the headers. Create it after ``rclpy.init``.
    """

    def __init__(
        self, node: Node, topic: str, frame_id: str, encoding: str, size: tuple[int, int] | None, truth: str | None
    ) -> None:
        self._clock = node.get_clock()
        self._frame_id, self._encoding, self._size = frame_id, encoding, size
        kind = CompressedImage if encoding in COMPRESSED else Image
        self._images = node.create_publisher(kind, topic, _QOS)
        self._truth: tuple[Any, ...] = ()
        if truth is not None:
            from multi_dnn_ros.training.scenes import LABELS

            self._truth = (
                node.create_publisher(Detection2DArray, f"{truth}/detections", _QOS),
                node.create_publisher(Image, f"{truth}/lane_mask", _QOS),
            )
            labels = node.create_publisher(LabelInfo, f"{truth}/label_info", LATCHED)
            labels.publish(label_info_message(LABELS, 1.0, Header(stamp=self._clock.now().to_msg())))

    @property
    def topic(self) -> str:
        """Resolved topic of the images."""
        return str(self._images.topic_name)

    def wait_for_subscribers(self, count: int, timeout_s: float, running: Callable[[], bool]) -> None:
        """Wait for `count` subscriptions to the images, and one to each topic of the ground truth.

        Does not wait if `count` is 0. Raises TimeoutError, which names the topic without enough subscriptions.
        """
        wanted = {self._images: count, **dict.fromkeys(self._truth, 1)} if count else {}
        deadline = time.monotonic() + timeout_s
        while running() and (few := [each for each, need in wanted.items() if each.get_subscription_count() < need]):
            if time.monotonic() > deadline:
                found = f"{few[0].get_subscription_count()} of {wanted[few[0]]} subscribers"
                raise TimeoutError(f"{found} on {few[0].topic_name} after {timeout_s:g} s")
            time.sleep(0.02)
        if wanted:  # DDS matches both sides independently: a subscriber may discover us some milliseconds later
            time.sleep(0.5)

    def publish(self, item: SourceImage) -> None:
        """Publish an image and its ground truth, stamped with the current time."""
        header = Header(stamp=self._clock.now().to_msg(), frame_id=self._frame_id)
        pixels = item.image if self._size is None else cv2.resize(item.image, self._size, interpolation=cv2.INTER_AREA)
        self._images.publish(image_message(np.asarray(pixels, np.uint8), header, self._encoding))
        if self._truth:
            assert item.scene is not None  # the command checks that the source is generated
            detections, lane_mask = self._truth
            detections.publish(truth_message(item.scene, header))
            lane_mask.publish(mono_message(item.scene.lane_mask, "mono8", header))

    def flush(self, timeout_s: float) -> None:
        """Wait until every reliable subscriber has received everything, at most this long."""
        deadline = time.monotonic() + timeout_s
        for publisher in (self._images, *self._truth):
            publisher.wait_for_all_acked(Duration(seconds=max(0.0, deadline - time.monotonic())))


@dataclass
class Report:
    """What was published so far. late: number of images more than a period late."""

    published: int = 0
    late: int = 0
    duration_s: float = 0.0

    def __str__(self) -> str:
        rate_hz = (self.published - 1) / self.duration_s if self.published > 1 and self.duration_s else 0.0
        late = f", {self.late} of them more than a period late" if self.late else ""
        return f"published {self.published} frames in {self.duration_s:.1f} s ({rate_hz:.2f} Hz){late}"


def play(
    source: Source, publish: Callable[[SourceImage], object], report: Report, *, rate_hz: float | None = None,
    count: int | None = None, loop: bool = False, running: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Play a source once, or repeatedly with `loop`; `report` is always current, also after an interruption.

    Images are due relative to the first one, so that delays of single images do not accumulate. A delay of more than a
    period is not followed by a burst: it shifts the schedule. A live source delivers its images at its own rate.

    rate_hz: None: that of the source, or 10. count: number of images. running: playing ends when it returns False.
    clock: returns monotonic seconds. sleep: pauses for a number of seconds.
    """
    period_s = 1.0 / (rate_hz or source.rate_hz or DEFAULT_RATE_HZ)
    begin_s = start_s = clock()
    for index, item in enumerate(source.items() if source.live else _repeated(source, loop)):
        if index == 0:
            begin_s = start_s = clock()
        elif not source.live:
            late_s = clock() - (start_s + index * period_s)
            if late_s > period_s:
                report.late += 1
                start_s += late_s
            while running() and (left_s := start_s + index * period_s - clock()) > 0.0:
                sleep(min(left_s, 0.1))
        if not running():
            break
        publish(item)
        report.published += 1
        report.duration_s = clock() - begin_s
        if index + 1 == count:
            break


def _repeated(source: Source, loop: bool) -> Iterator[SourceImage]:
    found = True
    while found:
        found = False
        for item in source.items():
            yield item
            found = loop
