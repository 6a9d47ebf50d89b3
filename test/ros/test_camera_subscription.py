"""While the QoS of a camera's subscription changes, two readers deliver images: no duplicates, and late ones marked."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image

from multi_dnn_ros.ros import camera_subscription
from multi_dnn_ros.ros.camera_input import is_quick
from multi_dnn_ros.ros.camera_subscription import CameraSubscription

SECOND = 1_000_000_000


class Readers:
    """A node without a middleware: the test calls the callbacks of the subscriptions."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[..., None]] = []
        self.delivered: list[tuple[int, int | None, bool]] = []
        self.subscription = CameraSubscription(
            self, Image, "/front/image_raw", QoSProfile(depth=1), self._deliver, lambda count: None
        )

    def create_subscription(
        self, kind: type, topic: str, callback: Callable[..., None], qos: QoSProfile, event_callbacks: Any
    ) -> Any:
        self.callbacks.append(callback)
        return SimpleNamespace(topic_name=topic)

    def destroy_subscription(self, subscription: Any) -> None:
        pass

    def _deliver(self, message: Image, sequence: int | None, late: bool) -> None:
        self.delivered.append((message.header.stamp.sec, sequence, late))

    def receive(self, reader: int, number: int, stamp: int | None = None) -> None:
        message = Image()
        message.header.stamp.sec = number if stamp is None else stamp
        info = {"source_timestamp": number * SECOND, "publication_sequence_number": number}
        self.callbacks[reader](*((message, info) if camera_subscription._callbacks_take_info() else (message,)))


@pytest.fixture
def readers() -> Readers:
    return Readers()


@pytest.fixture
def humble(monkeypatch: pytest.MonkeyPatch, readers: Readers) -> Readers:
    monkeypatch.setattr(camera_subscription, "_callbacks_take_info", lambda: False)
    return Readers()


def test_an_image_delivered_by_the_old_reader_after_a_later_one_is_late(readers: Readers) -> None:
    readers.receive(0, 5)
    readers.subscription.change(QoSProfile(depth=2), 0)
    for reader, number in [(1, 7), (0, 6), (0, 7), (1, 8), (1, 6)]:
        readers.receive(reader, number)
    assert readers.delivered == [(5, 5, False), (7, 7, False), (6, 6, True), (8, 8, False)]


def test_stamps_that_restart_after_the_change_are_not_late(readers: Readers) -> None:
    readers.subscription.change(QoSProfile(depth=2), 0)
    readers.receive(1, 7, stamp=100)
    readers.receive(1, 8, stamp=1)  # was sent later
    readers.subscription.tick(3 * SECOND)
    readers.receive(1, 6, stamp=50)
    assert [late for *_, late in readers.delivered] == [False, False, False]


def test_without_message_info_duplicates_are_found_by_their_stamps(humble: Readers) -> None:
    humble.subscription.change(QoSProfile(depth=2), 0)
    for reader, number in [(1, 7), (0, 6), (0, 7)]:
        humble.receive(reader, number)
    assert humble.delivered == [(7, None, False), (6, None, True)]


def test_without_message_info_and_stamps_only_the_new_reader_delivers(humble: Readers) -> None:
    humble.receive(0, 1, stamp=0)
    humble.subscription.change(QoSProfile(depth=2), 0)
    for number in (2, 3):
        humble.receive(0, number, stamp=0)
        humble.receive(1, number, stamp=0)
    assert len(humble.delivered) == 3


@pytest.mark.parametrize(
    ("encoding", "size", "quick"),
    [("rgb8", 400_000, True), ("mono8", 6, True), ("rgb8", 400_001, False), ("bayer_rggb8", 6, False), ("?", 6, False)],
)
def test_only_small_images_that_are_copied_or_reordered_are_quick(encoding: str, size: int, quick: bool) -> None:
    assert is_quick(Image(encoding=encoding, data=bytes(size))) is quick
