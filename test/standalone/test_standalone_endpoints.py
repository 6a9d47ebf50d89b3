"""The graph's information about the publishers of a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_publishers_of_a_topic_are_described(ros: Any, spin_until: Callable[..., None]) -> None:
    from rclpy.context import Context
    from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
    from sensor_msgs.msg import Image
    from std_msgs.msg import String

    from multi_dnn_ros.standalone.endpoints import TopicEndpointTypeEnum

    other = Context()
    ros.init(context=other)
    camera = ros.create_node("camera", context=other, namespace="/robot")
    node = ros.create_node("asking", namespace="/robot", cli_args=["--ros-args", "-r", "image:=elsewhere"])
    first = camera.create_publisher(Image, "elsewhere", QoSProfile(depth=3, reliability=ReliabilityPolicy.BEST_EFFORT))
    plain = ros.create_node("plain", namespace="/robot")
    plain.create_publisher(String, "elsewhere", QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL))
    node.create_publisher(Image, "/robot/another", 1)

    def described() -> list[tuple[Any, ...]]:
        return sorted(
            (
                info.node_namespace,
                info.node_name,
                info.topic_type,
                info.qos_profile.reliability,
                info.qos_profile.durability,
                info.endpoint_type,
            )
            for info in node.get_publishers_info_by_topic("image")  # relative, and the node's remap applies
        )

    publisher = TopicEndpointTypeEnum.PUBLISHER
    one = ("sensor_msgs/msg/Image", ReliabilityPolicy.BEST_EFFORT, DurabilityPolicy.VOLATILE, publisher)
    two = ("std_msgs/msg/String", ReliabilityPolicy.RELIABLE, DurabilityPolicy.TRANSIENT_LOCAL, publisher)
    spin_until(node, lambda: described() == [("/robot", "camera", *one), ("/robot", "plain", *two)])
    gids = [bytes(info.endpoint_gid) for info in node.get_publishers_info_by_topic("/robot/elsewhere")]
    assert len(set(gids)) == 2
    assert {len(gid) for gid in gids} == {16}
    camera.destroy_publisher(first)
    spin_until(node, lambda: described() == [("/robot", "plain", *two)])
    ros.shutdown(context=other)
