"""Errors of a result kind are reported when publishers are created or a result is published."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import multi_dnn_ros.ros  # noqa: F401
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.ros.result_publishers import ResultPublishers
from multi_dnn_ros.vision.drawing import draw
from multi_dnn_ros.vision.result_kind import RESULT_KINDS, GroundTopic, Image, Layer, ResultKind, Topic


class FakeNode:
    """A node that records its publishers. existing: topics of those that were created and not destroyed."""

    def __init__(self) -> None:
        self.existing: list[str] = []
        self.warnings: list[str] = []

    def get_logger(self) -> Any:
        return SimpleNamespace(warning=self.warnings.append)

    def create_lifecycle_publisher(self, kind: type, topic: str, qos: Any) -> Any:
        self.existing.append(topic)
        return SimpleNamespace(publish=print, topic=topic, get_subscription_count=lambda: 1)

    def destroy_lifecycle_publisher(self, publisher: Any) -> None:
        self.existing.remove(publisher.topic)


def publishers(kind: ResultKind) -> ResultPublishers:
    node: Any = FakeNode()
    return ResultPublishers(node, {"light": ("front",)}, {"light": {"": kind}})


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (Topic("lamp", "lamp_msgs/msg/Lamp", lambda result, header: None), "lamp_msgs/msg/Lamp is not installed"),
        (Topic("lamp", "std_msgs/msg/Header", "no_such_module:make"), "No module named 'no_such_module'"),
        (Topic("lamp", "std_msgs/msg/Header", "std_msgs.msg:make"), "make"),
    ],
)
def test_messages_that_cannot_be_created_are_refused_while_configuring(topic: Topic, reason: str) -> None:
    with pytest.raises(ExtensionError, match=rf"DNN light: topic lamp of result kind 'lamps' .*{reason}"):
        publishers(ResultKind("lamps", float, (topic,)))
    on_ground = GroundTopic(topic.name, topic.msgtype, topic.to_message)
    with pytest.raises(ExtensionError, match=rf"DNN light: topic lamp of result kind 'lamps' .*{reason}"):
        publishers(ResultKind("lamps", float, (), ground_topics=(on_ground,)))


def test_no_publisher_is_left_if_a_later_dnn_cannot_be_published() -> None:
    node: Any = FakeNode()
    results = {
        "object": {"": RESULT_KINDS.get("detections")},
        "light": {"": ResultKind("lamps", float, (Topic("lamp", "no_msgs/msg/Lamp", print),))},
    }
    with pytest.raises(ExtensionError, match="DNN light"):
        ResultPublishers(node, dict.fromkeys(results, ("front",)), results)  # type: ignore[arg-type]
    assert node.existing == []


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("points", IndexError("no such point"), "IndexError: no such point"),
        ("exiting_points", SystemExit(2), "SystemExit: 2"),
    ],
)
def test_a_kind_that_cannot_be_drawn_is_logged_once_and_the_others_are_drawn(
    kind: str, error: BaseException, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fill(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
        canvas[:] += 1

    def fail(canvas: Image, layers: Sequence[Layer], scale: float) -> None:
        raise error

    layers = [
        Layer(dnn, ResultKind(name, int, (), draw=draw_kind, draw_order=order), 1)
        for dnn, name, draw_kind, order in (("road", "below", fill, 0), ("hand", kind, fail, 1),
                                            ("foot", kind, fail, 1), ("car", "above", fill, 2))
    ]  # fmt: skip
    image = np.zeros((8, 8, 3), np.uint8)
    for _ in range(3):
        assert (draw(image, layers) == 2).all()
    (record,) = caplog.records
    assert record.getMessage() == f"results of foot, hand were not drawn: result kind '{kind}': draw raised {text}"
