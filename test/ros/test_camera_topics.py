"""Topics of the cameras: QoS that follows the publishers, topics without publishers, lost images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from node_bench import Bench, image
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String
from vision_msgs.msg import Detection2DArray

from multi_dnn_ros.ros import camera_input, serving_session
from multi_dnn_ros.settings.schema import BEST_EFFORT_DEPTH, RELIABLE_DEPTH

TOPIC = "/front/image_raw"
OUT = "/multi_dnn/front/object/detections"
BEST_EFFORT = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=50)
WARN, ERROR, STALE = 1, 2, 3
SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def _frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node checks its publishers as often as it reports."""
    monkeypatch.setattr(serving_session, "_CHECK_PERIOD_S", 0.1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(camera_input, "WARN_AFTER_NS", SECOND // 2)


@pytest.fixture
def warned(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """The node's warnings about cameras so far."""
    lines: list[str] = []

    def read() -> list[str]:
        lines.extend(capfd.readouterr().err.splitlines())
        return [line for line in lines if "[WARN]" in line and "camera front" in line]

    return read


def assert_in_the_first_characters(line: str, *words: str) -> None:
    """`ros2 topic echo` shows the first 128 characters of a text."""
    text = line[line.index("camera front: ") :]
    for word in words:
        assert word in text[:128], text


def start(bench: Bench, **parameters: Any) -> None:
    bench.node({f"camera.front.{name}": value for name, value in parameters.items()})
    assert bench.change("configure")
    assert bench.change("activate")


def qos(bench: Bench) -> str:
    return str(bench.status("camera front").by_key.get("QoS"))


def test_qos_auto_follows_the_publishers(bench: Bench, stranger: Any) -> None:
    start(bench)
    bench.until(lambda: qos(bench) == f"reliable, depth {RELIABLE_DEPTH}", "the QoS without a publisher")
    stranger.create_publisher(String, TOPIC, BEST_EFFORT)  # of another type: ignored
    first = bench.peer.create_publisher(Image, TOPIC, BEST_EFFORT)
    bench.until(lambda: qos(bench) == f"best effort, depth {BEST_EFFORT_DEPTH}", "the publisher's offer")
    second = bench.peer.create_publisher(Image, TOPIC, RELIABLE)
    bench.peer.destroy_publisher(first)
    bench.until(lambda: qos(bench) == f"reliable, depth {RELIABLE_DEPTH}", "what is left")
    bench.peer.destroy_publisher(second)
    reports = len(bench.reports)
    bench.until(lambda: len(bench.reports) > reports + 8, "some checks without a publisher")
    assert qos(bench) == f"reliable, depth {RELIABLE_DEPTH}"  # so that a restarted camera finds the same QoS


def test_no_image_is_answered_twice_while_the_qos_changes(bench: Bench) -> None:
    start(bench, depth=20)
    steady = bench.peer.create_publisher(Image, TOPIC, RELIABLE)
    results = bench.listen(OUT, Detection2DArray)
    bench.until(lambda: steady.get_subscription_count() >= 1, "the subscription")
    sent = 0

    def send_until(condition: Callable[[], bool]) -> None:
        nonlocal sent
        while not condition():
            sent += 1
            steady.publish(image(stamp=sent))
            bench.executor.spin_once(timeout_sec=0.01)

    for _ in range(3):
        other = bench.peer.create_publisher(Image, TOPIC, BEST_EFFORT)
        send_until(lambda: qos(bench) == "best effort, depth 20")
        bench.peer.destroy_publisher(other)
        send_until(lambda: qos(bench) == "reliable, depth 20")
    last = sent + 3
    send_until(lambda: sent >= last)
    bench.until(lambda: any(result.header.stamp.sec == sent for result in results), "the last result")
    stamps = [result.header.stamp.sec for result in results]
    assert len(stamps) == len(set(stamps))


@pytest.mark.usefixtures("impatient")
def test_two_publishers_on_one_topic_are_a_warning_with_their_names(
    bench: Bench, stranger: Any, warned: Callable[[], list[str]]
) -> None:
    bench.peer.create_publisher(Image, TOPIC, RELIABLE)
    other = stranger.create_publisher(Image, TOPIC, RELIABLE)
    start(bench)
    bench.until(warned, "a warning")
    (line,) = warned()
    assert "camera front" in line
    assert "/peer, /stranger" in line
    assert TOPIC in line
    bench.until(lambda: "/peer, /stranger" in bench.status("camera front").message, "the status")
    stranger.destroy_publisher(other)
    bench.until(lambda: "/stranger" not in bench.status("camera front").message, "the end of the warning")


@pytest.mark.usefixtures("impatient")
def test_the_warning_about_a_topic_without_publisher_lists_other_topics(
    bench: Bench, warned: Callable[[], list[str]]
) -> None:
    bench.peer.create_publisher(Image, "/front/image_rwa", 1)
    bench.peer.create_publisher(Image, "/unlike", 1)
    bench.peer.create_publisher(Image, "/other/multi_dnn/front/overlay", 1)  # of another node of this package
    bench.peer.create_publisher(Image, "/other/multi_dnn/front/lane/mask", 1)
    bench.peer.create_publisher(String, "/front/image_text", 1)
    bench.peer.create_subscription(Image, "/nobody_publishes", print, 1)
    start(bench)
    bench.until(warned, "a warning")
    (line,) = warned()
    assert "no publisher on /front/image_raw" in line
    assert "sensor_msgs/msg/Image: /front/image_rwa, /unlike" in line
    assert_in_the_first_characters(line, "did you mean /front/image_rwa?", "camera.front.topic")
    assert "image_text" not in line
    assert "/nobody_publishes" not in line
    reports = len(bench.reports)
    bench.until(lambda: len(bench.reports) > reports + 10, "more checks")
    assert len(warned()) == 1  # once, not at each check
    camera = bench.peer.create_publisher(Image, TOPIC, 1)
    bench.until(lambda: "no publisher" not in bench.status("camera front").message, "a publisher")
    bench.peer.destroy_publisher(camera)
    bench.until(lambda: len(warned()) == 2, "the next episode")


@pytest.mark.usefixtures("impatient")
def test_the_topic_of_another_camera_is_not_suggested(bench: Bench, warned: Callable[[], list[str]]) -> None:
    bench.peer.create_publisher(Image, "/rear/image_raw", 1)
    bench.node({"cameras": ["front", "rear"]})
    assert bench.change("configure")
    assert bench.change("activate")
    bench.until(warned, "a warning")
    (line,) = warned()
    assert "camera front: no publisher on /front/image_raw" in line
    assert "/rear/image_raw" not in line


@pytest.mark.usefixtures("impatient")
def test_an_incompatible_publisher_in_addition_to_a_compatible_one_is_no_error(
    bench: Bench, warned: Callable[[], list[str]]
) -> None:
    bench.peer.create_publisher(Image, TOPIC, RELIABLE)
    bench.peer.create_publisher(Image, TOPIC, BEST_EFFORT)
    start(bench, qos="reliable")
    bench.until(lambda: len(bench.reports) > 15, "enough checks for a warning")
    assert not [line for line in warned() if "incompatible" in line]
    assert bench.status("camera front").level != ERROR


def test_the_publishers_are_those_of_the_remapped_topic(bench: Bench) -> None:
    """Even if two cameras are remapped to the topics of each other."""
    swap = ["--ros-args", "-r", "front/image_raw:=rear/image_raw", "-r", "rear/image_raw:=front/image_raw"]
    bench.node(cli_args=swap)
    assert bench.change("configure")
    assert bench.change("activate")
    bench.peer.create_publisher(Image, "/rear/image_raw", RELIABLE)
    bench.until(lambda: qos(bench).startswith("reliable"), "the publisher's offer")


@pytest.mark.usefixtures("impatient")
def test_the_warning_lists_compressed_topics(bench: Bench, warned: Callable[[], list[str]]) -> None:
    bench.peer.create_publisher(CompressedImage, "/front/image_raw/compressed", 1)
    start(bench)
    bench.until(warned, "a warning")
    (line,) = warned()
    assert "no other topic of type sensor_msgs/msg/Image" in line
    assert_in_the_first_characters(line, "camera.front.transport compressed")
    assert "/front/image_raw/compressed" in line


@pytest.mark.usefixtures("impatient")
def test_a_publisher_of_another_type_is_a_warning(bench: Bench, stranger: Any, warned: Callable[[], list[str]]) -> None:
    stranger.create_publisher(CompressedImage, TOPIC, 1)
    start(bench)
    bench.until(warned, "a warning")
    (line,) = warned()
    assert "/front/image_raw has no publisher of sensor_msgs/msg/Image" in line
    assert "/stranger publishes sensor_msgs/msg/CompressedImage" in line
    assert_in_the_first_characters(line, "set camera.front.transport to compressed")
    bench.until(lambda: "/stranger publishes" in bench.status("camera front").message, "the reason in the status")


@pytest.mark.usefixtures("impatient")
def test_a_reliable_subscription_and_a_best_effort_camera(bench: Bench, warned: Callable[[], list[str]]) -> None:
    camera = bench.peer.create_publisher(Image, TOPIC, BEST_EFFORT)
    start(bench, qos="reliable")
    bench.until(lambda: bench.status("camera front").level == ERROR, "an error status")
    message = bench.status("camera front").message
    assert "/peer offers reliability BEST_EFFORT, the subscription requests RELIABLE" in message
    assert_in_the_first_characters(message, "set camera.front.qos to auto")
    bench.until(warned, "a warning")
    assert "BEST_EFFORT" in warned()[0]
    bench.peer.destroy_publisher(camera)
    bench.until(lambda: bench.status("camera front").level != ERROR, "the end of the error")
    assert len(warned()) == 1


def test_fewer_images_than_rate_hz_are_a_warning(bench: Bench) -> None:
    start(bench, rate_hz=1000.0)
    camera = bench.camera()
    for stamp in range(1, 10):
        reports = len(bench.reports)  # one each 0.1 s
        camera.publish(image(stamp=stamp))
        bench.until(lambda before=reports: len(bench.reports) > before, "a report")
    bench.until(lambda: "of the images are missing" in bench.status("camera front").message, "a warning")
    assert bench.status("camera front").level in (WARN, STALE)
    assert "camera.front.rate_hz" in bench.status("camera front").message
