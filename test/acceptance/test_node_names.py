"""Two nodes on one computer, remapped topics, message types of the real packages, and simulated time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import Camera, Client, DnnOnCamera, Node
from rosgraph_msgs.msg import Clock

SECOND = 1_000_000_000
#: Computed by rosidl from the definitions in ros-perception/vision_msgs (branch ros2, e77fa2d).
TYPE_HASHES = {
    "front/object/detections": "RIHS01_214274120007f4a683866481336b70310268cfa107aebe9d594a6acf75bda968",
    "object/label_info": "RIHS01_3d37df4015cdf660cc851c51897f2acd957e1ca6205ba0a99aebffb9406b0783",
}


@pytest.fixture(scope="module")
def dnns(client: Client, start_node: Callable[..., Node]) -> list[DnnOnCamera]:
    """Of two nodes; the second one uses simulated time, and gets its images from a topic of another name."""
    remap = ["-p", "use_sim_time:=true", "-r", "front/image_raw:=/shared/camera"]
    nodes = [
        start_node({"dnns": ["object"]}, name="/robot1/multi_dnn"),
        start_node({"dnns": ["object"]}, name="/robot2/perception", ros_arguments=remap),
    ]
    for node in nodes:
        node.wait_until_active()
    dnns = [DnnOnCamera(nodes[0]), DnnOnCamera(nodes[1], camera=Camera(client, "/shared/camera"))]
    return [dnn.connect() for dnn in dnns]


def test_each_node_has_its_own_cameras_parameters_and_diagnostics(dnns: list[DnnOnCamera]) -> None:
    for dnn in dnns:
        dnn.begin()
    for dnn in (dnns[0], dnns[1], dnns[1]):
        dnn.answer()
    assert [dnn.check()["published"] for dnn in dnns] == [1, 2]
    for dnn in dnns:
        assert dnn.node.status("camera front").values["topic"] == dnn.camera.topic
    dnns[1].node.set({"dnn.object.max_detections": 7})
    assert dnns[0].node.get_parameters("dnn.object.max_detections") == [100]


def test_published_types_are_those_of_the_real_packages(client: Client, dnns: list[DnnOnCamera]) -> None:
    for topic, expected in TYPE_HASHES.items():
        publishers = client.node.get_publishers_info_by_topic(dnns[0].node.topic(topic))
        assert [str(publisher.topic_type_hash) for publisher in publishers] == [expected], topic


def test_simulated_time(client: Client, dnns: list[DnnOnCamera]) -> None:
    """Images have the stamps of a recording that is played, and then starts again."""
    dnn = dnns[1]
    clock = client.node.create_publisher(Clock, "/clock", 10)
    client.wait_for(clock.get_subscription_count, "a subscription of /clock")
    dnn.begin()
    for _ in range(2):
        dnn.results.messages.clear()  # the same stamps come again
        for step in range(12):
            now = 1000 * SECOND + step * SECOND // 10
            message = Clock()
            message.clock.sec, message.clock.nanosec = divmod(now, SECOND)
            clock.publish(message)
            dnn.answer(stamp=now)
    dnn.node.wait_for_diagnostics()
    assert dnn.account() == {"offered": 24, "published": 24}
    age = dnn.node.status("camera front").number("header stamp to arrival p50 (ms)")
    assert abs(age) < 60_000, "the age of the images is by simulated time"
