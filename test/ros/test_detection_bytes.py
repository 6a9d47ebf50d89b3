"""The bytes of published detections are those of their message, with zeros as padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from hypothesis import given
from hypothesis import strategies as st
from rclpy.serialization import deserialize_message, serialize_message
from std_msgs.msg import Header
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.replay.message_definitions import canonical
from multi_dnn_ros.ros import detection_bytes
from multi_dnn_ros.ros.detection_bytes import published_detections, published_instances
from multi_dnn_ros.ros.result_messages import detections_message
from multi_dnn_ros.vision.result_kinds import detections as boxes_kind
from multi_dnn_ros.vision.result_kinds import instance_masks
from multi_dnn_ros.vision.results import Detections, InstanceMasks

CLASSES = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 10**12)), max_size=12)


def detections(classes_and_ids: list[tuple[int, int]], tracked: bool) -> Detections:
    number = len(classes_and_ids)
    generator = np.random.default_rng(number)
    class_ids, ids = np.array(classes_and_ids, np.int64).reshape(number, 2).T
    return Detections(
        generator.uniform(0, 2000, (number, 4)).astype(np.float32),
        generator.uniform(size=number).astype(np.float32),
        class_ids,
        ("car",),
        ids if tracked else None,
    )


def header(frame_id: str) -> Header:
    return Header(stamp=Time(sec=-5, nanosec=999_999_999), frame_id=frame_id)


@given(classes_and_ids=CLASSES, tracked=st.booleans(), frame_id=st.text(st.characters(exclude_characters="\0",
       exclude_categories=["Cs"]), max_size=9))  # fmt: skip
def test_the_bytes_are_those_of_the_message(
    classes_and_ids: list[tuple[int, int]], tracked: bool, frame_id: str
) -> None:
    found, head = detections(classes_and_ids, tracked), header(frame_id)
    message = detections_message(found, head)
    published = published_detections(found, head)
    assert isinstance(published, bytes)  # also with a real ROS 2, as long as it has vision_msgs 4
    assert published == canonical("vision_msgs/msg/Detection2DArray", bytes(serialize_message(message)))
    assert deserialize_message(published, Detection2DArray) == message


def test_instances_are_published_as_their_boxes() -> None:
    found, head = detections([(1, 0), (12, 3)], True), header("lens")
    published = published_instances(InstanceMasks(found, np.zeros((2, 2), np.uint8), (2, 2)), head)
    assert published == published_detections(found, head)
    for kind, function in ((boxes_kind.KIND, published_detections), (instance_masks.KIND, published_instances)):
        assert kind.topics[0].published is function


@pytest.fixture
def _unknown_layout() -> Iterator[None]:
    """The layout is checked in the test, and again after it."""
    detection_bytes._is_layout.cache_clear()
    yield
    detection_bytes._is_layout.cache_clear()


@pytest.mark.usefixtures("_unknown_layout")
def test_a_middleware_with_messages_of_another_length_gets_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection_bytes, "serialize_message", lambda message: b"other")
    found, head = detections([(1, 0)], False), header("lens")
    assert published_detections(found, head) == detections_message(found, head)


@pytest.mark.usefixtures("_unknown_layout")
@pytest.mark.parametrize("error", [None, RuntimeError("Fast CDR exception")])
def test_a_middleware_that_reads_another_message_from_the_bytes_gets_the_message(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    def deserialize(serialized: bytes, kind: type) -> Detection2DArray:
        if error is not None:
            raise error
        return Detection2DArray()

    monkeypatch.setattr(detection_bytes, "deserialize_message", deserialize)
    found, head = detections([(1, 0)], False), header("lens")
    assert published_detections(found, head) == detections_message(found, head)


@pytest.mark.usefixtures("_unknown_layout")
def test_a_middleware_that_does_not_initialize_padding_gets_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Fast CDR 2.3.5 in memory that was used before."""

    def serialize(message: Detection2DArray) -> bytes:
        end = 4 + 8 + 4 + len(message.header.frame_id) + 1  # encapsulation, stamp, length and text of the frame id
        serialized = bytes(serialize_message(message))
        assert end % 4, "no padding"
        return serialized[:end] + b"\xaa" + serialized[end + 1 :]

    monkeypatch.setattr(detection_bytes, "serialize_message", serialize)
    assert isinstance(published_detections(detections([(1, 0)], False), header("lens")), bytes)
