"""Two nodes on one computer, remapped topics, message types of the real packages, and simulated time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from harness import LATCHED, Client, NodeProcess, Recording
from rosgraph_msgs.msg import Clock
from vision_msgs.msg import Detection2DArray, LabelInfo

IMAGE = np.random.default_rng(6).integers(0, 255, (120, 160, 3), np.uint8)
NAMES = ("/robot1/multi_dnn", "/robot2/perception")
#: Computed by rosidl from the definitions in ros-perception/vision_msgs (branch ros2, e77fa2d; the same in 4.1.1).
TYPE_HASHES = {
    "front/object/detections": "RIHS01_214274120007f4a683866481336b70310268cfa107aebe9d594a6acf75bda968",
    "object/label_info": "RIHS01_3d37df4015cdf660cc851c51897f2acd957e1ca6205ba0a99aebffb9406b0783",
}


@pytest.fixture(scope="module")
def nodes(client: Client, start_node: Callable[..., NodeProcess]) -> tuple[NodeProcess, ...]:
    """The second one uses simulated time and has its camera and its detections under other names."""
    remaps = ["front/image_raw:=/shared/camera", "~/front/object/detections:=/objects"]
    others = ["-p", "use_sim_time:=true", *(word for remap in remaps for word in ("-r", remap))]
    started = tuple(
        start_node({"dnns": ["object"]}, name=name, ros_arguments=arguments)
        for name, arguments in zip(NAMES, ([], others), strict=True)
    )
    for name in NAMES:
        client.wait_until_active(name)
    return started


@pytest.fixture(scope="module")
def results(client: Client, nodes: tuple[NodeProcess, ...]) -> list[Recording]:
    topics = (nodes[0].topic("front/object/detections"), "/objects")
    return [client.record(topic, Detection2DArray) for topic in topics]


def test_each_node_has_its_own_cameras_parameters_and_diagnostics(
    client: Client, nodes: tuple[NodeProcess, ...], results: list[Recording]
) -> None:
    cameras = [client.camera(topic) for topic in ("/robot1/front/image_raw", "/shared/camera")]
    for camera, recording in zip(cameras, results, strict=True):
        client.connect(camera, IMAGE, recording)
    counts = [client.settled("object", node=name) for name in NAMES]
    client.answer(cameras[0], IMAGE, results[0])
    for _ in range(2):
        client.answer(cameras[1], IMAGE, results[1])
    after = [client.settled("object", node=name).since(before) for name, before in zip(NAMES, counts, strict=True)]
    assert [account.published for account in after] == [1, 2]
    for name, camera in zip(NAMES, cameras, strict=True):
        assert client.status("camera front", name).values["topic"] == camera.topic
    assert not set(results[0].stamps) & set(results[1].stamps)
    assert client.set_parameters({"dnn.object.max_detections": 7}, NAMES[1]) == {}
    assert client.get_parameters("dnn.object.max_detections", node=NAMES[0]) == [100]


def test_published_types_are_those_of_the_real_packages(client: Client, nodes: tuple[NodeProcess, ...]) -> None:
    for topic, expected in TYPE_HASHES.items():
        publishers = client.node.get_publishers_info_by_topic(nodes[0].topic(topic))
        assert [str(publisher.topic_type_hash) for publisher in publishers] == [expected], topic


def test_class_names_reach_late_subscribers(client: Client, nodes: tuple[NodeProcess, ...]) -> None:
    labels = client.record(nodes[0].topic("object/label_info"), LabelInfo, LATCHED)
    client.wait_for(lambda: labels.messages, "label_info")
    names = {entry.class_id: entry.class_name for entry in labels.messages[-1].class_map}
    assert {"car", "truck"} <= set(names.values())
    assert 0 < labels.messages[-1].threshold < 1


def test_simulated_time(client: Client, nodes: tuple[NodeProcess, ...], results: list[Recording]) -> None:
    """Images have the stamps of a recording that is played, and starts again."""
    second = 1_000_000_000
    clock = client.node.create_publisher(Clock, "/clock", 10)
    client.wait_for(clock.get_subscription_count, "a subscription of /clock")
    camera = client.camera("/shared/camera")
    client.connect(camera, IMAGE, results[1])
    before = client.settled("object", node=NAMES[1])
    for _ in range(2):
        for step in range(12):
            now = 1000 * second + step * second // 10
            message = Clock()
            message.clock.sec, message.clock.nanosec = divmod(now, second)
            clock.publish(message)
            client.spin(0.02)
            stamp = camera.send(IMAGE, now)
            client.wait_for(lambda s=stamp: s in results[1].stamps, "the result")
        results[1].messages.clear()
    account = client.settled("object", node=NAMES[1]).since(before)
    assert (account.offered, account.published, account.dropped) == (24, 24, {})
    age = client.status("camera front", NAMES[1]).number("header stamp to arrival p50 (ms)")
    assert abs(age) < 60_000, "the age of the images is by simulated time"
