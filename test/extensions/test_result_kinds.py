"""Errors of a result kind are reported when publishers are created or a result is published."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import MagicMock

import numpy as np
import pytest

import multi_dnn_ros.ros  # noqa: F401
from multi_dnn_ros.common.extensions import ExtensionError
from multi_dnn_ros.ros.result_publishers import ResultPublishers
from multi_dnn_ros.vision.drawing import draw
from multi_dnn_ros.vision.result_kind import GroundTopic, Image, Layer, ResultKind, Topic


def publishers(kind: ResultKind) -> ResultPublishers:
    return ResultPublishers(MagicMock(), {"light": ("front",)}, {"light": {"": kind}})


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
