"""Cameras that stop, return, double, are missing or cannot be received, and large raw images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from harness import BEST_EFFORT, Camera, Client, NodeProcess, Recording
from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage
from vision_msgs.msg import Detection2DArray

IMAGE = np.random.default_rng(5).integers(0, 255, (120, 160, 3), np.uint8)
LARGE = np.zeros((720, 1280, 3), np.uint8)


@pytest.fixture(scope="module")
def node(client: Client, start_node: Callable[..., NodeProcess]) -> NodeProcess:
    started = start_node(
        {
            "cameras": ["front", "missing", "mistyped", "strict"],
            "camera": {"strict": {"qos": "reliable"}},
            "dnns": ["object"],
            "stale_after_s": 1.0,
        }
    )
    client.wait_until_active()
    return started


@pytest.fixture(scope="module")
def results(client: Client, node: NodeProcess) -> Recording:
    return client.record(node.topic("front/object/detections"), Detection2DArray)


@pytest.fixture(scope="module")
def camera(client: Client, node: NodeProcess, results: Recording) -> Camera:
    camera = client.camera("front/image_raw", node="first_camera")
    client.connect(camera, IMAGE, results)
    return camera


def level(client: Client, camera: str = "front") -> str:
    return client.status(f"camera {camera}").level


def test_a_camera_that_stops_and_returns(client: Client, camera: Camera, results: Recording) -> None:
    before = client.settled("object")
    sent = len(camera.sent)
    for _ in range(2):
        client.stream_until(camera, IMAGE, lambda: level(client) == "OK", "an OK camera", 0.2)
        client.wait_for(lambda: level(client) == "STALE", "a STALE camera")
        assert client.status("object on front").level == "STALE"
        assert "/front/image_raw" in client.status("camera front").values["topic"]
    account = client.settled("object").since(before)
    assert account.offered == len(camera.sent) - sent
    results.check_unique()


def test_a_driver_that_is_started_again(client: Client, camera: Camera, results: Recording) -> None:
    for _ in range(2):
        again = client.camera("front/image_raw", node="first_camera_again")
        client.connect(again, IMAGE, results)
        again.close()
    client.connect(camera, IMAGE, results)
    client.settled("object")
    results.check_unique()


@pytest.mark.xfail(strict=True, reason="issue 46, D.7: two publishers on one topic are not reported")
def test_two_cameras_on_one_topic_are_named(client: Client, camera: Camera, results: Recording) -> None:
    second = client.camera("front/image_raw", node="second_camera")
    try:
        client.connect(second, IMAGE, results)

        def named() -> bool:
            second.send(IMAGE)
            camera.send(IMAGE)
            client.spin(0.1)
            message = client.status("camera front").message
            return level(client) == "WARN" and "first_camera" in message and "second_camera" in message

        client.wait_for(named, "a warning that names both publishers", 10.0)
    finally:
        second.close()


def test_no_image_is_answered_twice_while_the_qos_changes(client: Client, camera: Camera, results: Recording) -> None:
    """A best-effort publisher comes and goes: the node asks for what all publishers offer."""
    client.connect(camera, IMAGE, results)

    def quality() -> str:
        return client.status("camera front").values.get("QoS", "")

    for _ in range(2):
        client.stream_until(camera, IMAGE, lambda: quality().startswith("reliable"), "a reliable subscription")
        second = client.camera("front/image_raw", qos=BEST_EFFORT, node="best_effort_camera")

        def answered_best_effort(second: Camera = second) -> bool:
            second.send(IMAGE)
            return quality().startswith("best effort") and bool(set(second.sent) & set(results.stamps[-20:]))

        client.stream_until(camera, IMAGE, answered_best_effort, "answers to both with best effort")
        second.close()
    client.stream_until(camera, IMAGE, lambda: quality().startswith("reliable"), "a reliable subscription again")
    client.settled("object")
    results.check_unique()


@pytest.mark.xfail(strict=True, reason="issue 46, D.12: the reason is in the log, not in /diagnostics")
def test_the_status_says_why_no_image_arrives(client: Client, node: NodeProcess) -> None:
    wrong = client.camera("mistyped/image_raw", CompressedImage)
    words = {"missing": "no publisher", "mistyped": "sensor_msgs/msg/Image"}
    try:
        for name, word in words.items():
            client.wait_for(lambda n=name: level(client, n) == "STALE", "a STALE camera")
            client.wait_for(
                lambda n=name, w=word: w in client.status(f"camera {n}").message, f"{word} in the status", 10.0
            )
    finally:
        wrong.close()


def test_an_incompatible_qos_is_an_error(client: Client, node: NodeProcess) -> None:
    offers_less = client.camera("strict/image_raw", qos=BEST_EFFORT)
    client.stream_until(offers_less, IMAGE, lambda: level(client, "strict") == "ERROR", "the level ERROR", 0.2)
    assert "QoS" in client.status("camera strict").message
    offers_less.close()
    strict = client.camera("strict/image_raw")
    client.stream_until(strict, IMAGE, lambda: level(client, "strict") == "OK", "the level OK", 0.2)


def test_raw_images_of_a_reliable_camera_are_not_lost(client: Client, camera: Camera, results: Recording) -> None:
    """1280 x 720 at 10 Hz from another process."""
    rounds = 50
    camera.close()
    driver = client.camera("front/image_raw", qos=QoSProfile(depth=10), node="driver")
    client.connect(driver, IMAGE, results)
    client.stream_until(
        driver, IMAGE, lambda: client.status("camera front").values["QoS"].startswith("reliable"), "reliable QoS"
    )
    before = client.settled("object")
    received = client.status("camera front").number("received")
    sent = len(driver.sent)
    client.stream_until(driver, LARGE, lambda: len(driver.sent) - sent == rounds, "all images", 0.1)
    account = client.settled("object").since(before)
    assert client.status("camera front").number("received") - received == rounds
    assert account.offered == rounds
    assert account.dropped.keys() <= {"overwritten"}
    assert account.published > rounds // 4
    results.check_unique()
    driver.close()


def test_a_second_publisher_of_large_images_that_leaves_is_no_loss(
    client: Client, node: NodeProcess, results: Recording
) -> None:
    driver = client.camera("front/image_raw", node="driver")
    visitor = client.camera("front/image_raw", node="visitor")
    client.connect(driver, IMAGE, results)
    client.connect(visitor, LARGE, results)
    sent = len(visitor.sent)
    client.stream_until(visitor, LARGE, lambda: len(visitor.sent) - sent >= 20, "20 large images", 0.05)
    visitor.close()
    count = client.diagnostics_received

    def two_seconds_without_losses() -> bool:
        assert "missing" not in client.status("camera front").message
        return client.diagnostics_received > count + 20 and level(client) == "OK"

    client.stream_until(driver, IMAGE, two_seconds_without_losses, "an OK camera", 0.1)
    results.check_unique()
    driver.close()
