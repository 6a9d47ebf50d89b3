"""The graph's information about the publishers of a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


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


def test_deleted_endpoints_are_not_read_again(
    ros: Any, spin_until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a robot, other processes come and go all day."""
    from cyclonedds.builtin import BuiltinDataReader
    from rclpy.context import Context
    from std_msgs.msg import String

    other = Context()
    ros.init(context=other)
    coming = ros.create_node("coming", context=other)
    node = ros.create_node("asking")
    read: list[int] = []
    after: list[int] = []
    read_samples = BuiltinDataReader.read

    def count(*arguments: Any) -> Any:
        samples = read_samples(*arguments)
        read.append(len(samples))
        return samples

    monkeypatch.setattr(BuiltinDataReader, "read", count)
    for number in range(4):
        publishers = [coming.create_publisher(String, f"topic_{index}", 1) for index in range(20)]
        spin_until(node, lambda: node.count_publishers("topic_19") == 1)
        for publisher in publishers:
            coming.destroy_publisher(publisher)
        spin_until(node, lambda: node.count_publishers("topic_19") == 0)
        coming.create_publisher(String, f"last_{number}", 1)
        spin_until(node, lambda number=number: node.count_publishers(f"last_{number}") == 1)
        after.append(read[-1])
    assert after[-1] < after[0] + 20
    ros.shutdown(context=other)


def test_a_node_list_that_cannot_be_decoded_is_dropped(
    ros: Any, spin_until: Callable[..., None], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rclpy.qos import DurabilityPolicy, QoSProfile
    from rclpy.serialization import serialize_message
    from rmw_dds_common.msg import NodeEntitiesInfo, ParticipantEntitiesInfo

    from multi_dnn_ros.standalone import cdr, graph
    from multi_dnn_ros.standalone.dds import Payload, Writer
    from multi_dnn_ros.standalone.qos import to_dds

    node = ros.create_node("asking")
    qos = to_dds(QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL), b"")
    foreign = Writer(node.context.participant, "ros_discovery_info", "rmw_dds_common/msg/ParticipantEntitiesInfo", qos)
    info = ParticipantEntitiesInfo(node_entities_info_seq=[NodeEntitiesInfo(node_name="foreign", node_namespace="/")])
    decode = graph.cdr.deserialize

    def refuse(data: bytes, kind: type) -> Any:
        """Cyclone DDS itself refuses to send bytes that do not fit the type."""
        if b"foreign" in bytes(data):
            raise cdr.CdrError("rmw_dds_common/msg/NodeEntitiesInfo.node_name: damaged")
        return decode(data, kind)

    monkeypatch.setattr(graph.cdr, "deserialize", refuse)
    foreign.write(Payload(bytes(serialize_message(info))))
    errors: list[str] = []

    def dropped() -> bool:
        assert node.get_node_names() == ["asking"]
        errors.append(capfd.readouterr().err)
        return "message on ros_discovery_info dropped: rmw_dds_common/msg/NodeEntitiesInfo.node_name" in "".join(errors)

    spin_until(node, dropped)
    spin_until(node, lambda: [info.node_name for info in node.get_publishers_info_by_topic("/rosout")] == ["asking"])
    foreign.close()
