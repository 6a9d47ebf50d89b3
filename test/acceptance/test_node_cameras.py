"""Cameras that stop, return, double, are missing or cannot be received, and large raw images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from harness import BEST_EFFORT, Camera, Client, DnnOnCamera, Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage

LARGE = np.zeros((720, 1280, 3), np.uint8)
TOPIC = "front/image_raw"


@pytest.fixture(scope="module")
def node(start_node: Callable[..., Node]) -> Node:
    cameras = ["front", "missing", "mistyped", "strict"]
    strict = {"strict": {"qos": "reliable"}}
    node = start_node({"cameras": cameras, "camera": strict, "dnns": ["object"]})
    node.wait_until_active()
    return node


@pytest.fixture(scope="module")
def dnn(client: Client, node: Node) -> DnnOnCamera:
    return DnnOnCamera(node, camera=Camera(client, TOPIC, node="first_camera"))


def level(node: Node, camera: str = "front") -> str:
    return node.status(f"camera {camera}").level


def test_a_camera_that_stops_and_returns(client: Client, node: Node, dnn: DnnOnCamera) -> None:
    for driver in (Camera(client, TOPIC, node="driver_that_is_started_again"), dnn.camera):
        driver.send_until(lambda: level(node) == "OK", "an OK camera", 0.2)
        client.wait_for(lambda: level(node) == "STALE", "a STALE camera")
        assert node.status("object on front").level == "STALE"
        if driver is not dnn.camera:
            driver.close()
    dnn.connect()
    dnn.results.check_unique()


def test_two_cameras_on_one_topic_are_named(client: Client, node: Node, dnn: DnnOnCamera) -> None:
    second = Camera(client, TOPIC, node="second_camera")

    def named() -> bool:
        second.send()
        message = node.status("camera front").message
        return level(node) == "WARN" and "first_camera" in message and "second_camera" in message

    try:
        second.send_until_answered(dnn.results)
        dnn.camera.send_until(named, "a warning that names both publishers", 0.1)
    finally:
        second.close()


def test_no_image_is_answered_twice_while_the_qos_changes(client: Client, node: Node, dnn: DnnOnCamera) -> None:
    """A best-effort publisher comes and goes: the node asks for what all publishers offer."""

    def has(quality: str) -> bool:
        return node.status("camera front").values["QoS"].startswith(quality)

    dnn.connect()
    for _ in range(2):
        dnn.camera.send_until(lambda: has("reliable"), "a reliable subscription")
        second = Camera(client, TOPIC, qos=BEST_EFFORT, node="best_effort_camera")

        def answered_best_effort(second: Camera = second) -> bool:
            second.send()
            return has("best effort") and bool(set(second.sent) & set(dnn.results.stamps[-20:]))

        dnn.camera.send_until(answered_best_effort, "answers to both with best effort")
        second.close()
    dnn.camera.send_until(lambda: has("reliable"), "a reliable subscription again")
    dnn.connect()
    dnn.results.check_unique()


def test_the_status_says_why_no_image_arrives(client: Client, node: Node) -> None:
    wrong = Camera(client, "mistyped/image_raw", CompressedImage)

    def explained() -> bool:
        words = {"missing": "no publisher", "mistyped": "sensor_msgs/msg/CompressedImage"}
        return all(word in node.status(f"camera {name}").message for name, word in words.items())

    client.wait_for(explained, "the reasons in the statuses")
    wrong.close()


def test_an_incompatible_qos_is_an_error(client: Client, node: Node) -> None:
    offers_less = Camera(client, "strict/image_raw", qos=BEST_EFFORT)
    offers_less.send_until(lambda: level(node, "strict") == "ERROR", "the level ERROR", 0.2)
    assert "QoS" in node.status("camera strict").message
    offers_less.close()
    Camera(client, "strict/image_raw").send_until(lambda: level(node, "strict") == "OK", "the level OK", 0.2)


def test_raw_images_of_a_reliable_camera_are_not_lost(client: Client, node: Node, dnn: DnnOnCamera) -> None:
    """1280 x 720 at 10 Hz from another process."""
    dnn.camera.close()
    driver = dnn.camera = Camera(client, TOPIC, qos=QoSProfile(depth=10), node="driver")
    driver.send_until(lambda: node.status("camera front").values["QoS"].startswith("reliable"), "reliable QoS")
    dnn.connect().begin()
    received, sent = node.status("camera front").number("received"), len(driver.sent)
    driver.send_until(lambda: len(driver.sent) - sent == 50, "all images", 0.1, LARGE)
    assert dnn.check()["published"] > 10
    assert node.status("camera front").number("received") - received == 50


def test_a_second_publisher_of_large_images_that_leaves_is_no_loss(
    client: Client, node: Node, dnn: DnnOnCamera
) -> None:
    visitor = Camera(client, TOPIC, node="visitor")
    dnn.connect()
    visitor.send_until_answered(dnn.results, LARGE)
    sent = len(visitor.sent)
    visitor.send_until(lambda: len(visitor.sent) - sent >= 20, "20 large images", 0.05, LARGE)
    visitor.close()
    count = client.received["multi_dnn: camera front"]

    def ok_for_two_seconds() -> bool:
        assert "missing" not in node.status("camera front").message
        return client.received["multi_dnn: camera front"] > count + 20 and level(node) == "OK"

    dnn.camera.send_until(ok_for_two_seconds, "an OK camera", 0.1)
    dnn.results.check_unique()
