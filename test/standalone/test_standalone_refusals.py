"""Errors name missing features and unsuitable environments."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from multi_dnn_ros.standalone.missing import UnsupportedError


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda node: node.create_rate(1.0), "no Node.create_rate"),
        (lambda node: node.get_subscriptions_info_by_topic("x"), "no Node.get_subscriptions_info_by_topic"),
    ],
)
def test_a_missing_method_raises_an_explicit_error(ros: Any, call: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(AttributeError, match=f"standalone runtime .* {text}"):
        call(ros.create_node("n"))


def test_unsupported_arguments_are_refused(ros: Any) -> None:
    from rclpy.node import Node
    from rclpy.parameter import Parameter
    from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
    from std_msgs.msg import String

    node = ros.create_node("n")
    with pytest.raises(UnsupportedError, match=r"no endpoints with history KEEP_ALL.*use KEEP_LAST"):
        node.create_publisher(String, "t", QoSProfile(history=HistoryPolicy.KEEP_ALL))
    with pytest.raises(UnsupportedError, match="BEST_AVAILABLE"):
        node.create_publisher(String, "t", QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_AVAILABLE))
    with pytest.raises(UnsupportedError, match="event_callbacks"):
        node.create_subscription(String, "t", print, 1, event_callbacks=object())
    with pytest.raises(UnsupportedError, match="enable_logger_service"):
        Node("n", enable_logger_service=True)
    with pytest.raises(UnsupportedError, match="get_type_description"):
        Node("n", parameter_overrides=[Parameter("start_type_description_service", value=True)])
    with pytest.raises(UnsupportedError, match="check_fields=False"):
        String(check_fields=False)
    with pytest.raises(AttributeError, match=r"standalone runtime .* no std_msgs.msg.String.SLOT_TYPES"):
        String.SLOT_TYPES  # noqa: B018
    with pytest.raises(AttributeError, match=r"standalone runtime .* no QoSProfile.get_c_qos_profile"):
        QoSProfile(depth=1).get_c_qos_profile()
    with pytest.raises(AttributeError, match="message class"):
        node.create_publisher(str, "t", 1)
    with pytest.raises(TypeError, match="carries std_msgs/msg/String"):
        node.create_publisher(String, "t", 1).publish(3)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ROS_DOMAIN_ID", "233", "ROS_DOMAIN_ID must be an integer from 0 to 232, not 233"),
        ("ROS_DOMAIN_ID", "x", "ROS_DOMAIN_ID must be an integer from 0 to 232, not 'x'"),
        ("ROS_AUTOMATIC_DISCOVERY_RANGE", "OFF", "cannot turn discovery off"),
        ("ROS_AUTOMATIC_DISCOVERY_RANGE", "FAR", "must be one of LOCALHOST, SUBNET, not 'FAR'"),
    ],
)
def test_a_bad_environment_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, text: str) -> None:
    import rclpy

    monkeypatch.setenv(name, value)
    with pytest.raises((ValueError, UnsupportedError), match=text):
        rclpy.init(args=[])
    assert not rclpy.ok()


def test_a_domain_that_cannot_be_joined_with_a_configuration_of_the_user_is_named(
    domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rclpy

    monkeypatch.setenv("CYCLONEDDS_URI", "<Discovery><ParticipantIndex>0</ParticipantIndex></Discovery>")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("0.0.0.0", 7400 + 250 * domain + 10))
        with pytest.raises(RuntimeError, match=f"cannot join ROS domain {domain} .* configured by CYCLONEDDS_URI"):
            rclpy.init(args=[])
    assert not rclpy.ok()


def test_a_domain_without_free_ports_is_named(domain: int) -> None:
    """As for the 34th process of a machine."""
    import rclpy

    with ExitStack() as stack:
        for index in range(33):
            taken = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            with suppress(OSError):  # taken by another program
                taken.bind(("0.0.0.0", 7400 + 250 * domain + 10 + 2 * index))
        with pytest.raises(RuntimeError, match=f"cannot join ROS domain {domain} .* 33 processes of one machine"):
            rclpy.init(args=[])
    assert not rclpy.ok()
