"""Topics of the cameras: QoS that follows the publishers, topics without publishers, lost images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from node_bench import Bench, image
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from std_msgs.msg import String

from multi_dnn_ros.ros import camera_input, served_dnns

TOPIC = "/front/image_raw"
OUT = "/multi_dnn/front/object/detections"
BEST_EFFORT = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=50)
WARN, ERROR, STALE = 1, 2, 3
SECOND = 1_000_000_000


@pytest.fixture(autouse=True)
def _frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node checks its publishers as often as it reports."""
    monkeypatch.setattr(served_dnns, "_CHECK_PERIOD_S", 0.1)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(camera_input, "_WARN_AFTER_NS", SECOND // 2)


@pytest.fixture
def warned(bench: Bench, capfd: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """The node's warnings about cameras so far."""
    lines: list[str] = []

    def read() -> list[str]:
        lines.extend(capfd.readouterr().err.splitlines())
        return [line for line in lines if "[WARN]" in line and "camera front" in line]

    return read


def start(bench: Bench, **parameters: Any) -> None:
    bench.node({f"camera.front.{name}": value for name, value in parameters.items()})
    assert bench.change("configure")
    assert bench.change("activate")


def qos(bench: Bench) -> str:
    return str(bench.status("camera front").by_key.get("QoS"))


@pytest.mark.usefixtures("impatient")
def test_the_warning_about_a_topic_without_publisher_lists_other_topics(
    bench: Bench, warned: Callable[[], list[str]]
) -> None:
    bench.peer.create_publisher(Image, "/front/image_rwa", 1)
    bench.peer.create_publisher(Image, "/unlike", 1)
    bench.peer.create_publisher(Image, "/other/multi_dnn/front/overlay", 1)  # of another node of this package
    bench.peer.create_publisher(Image, "/other/multi_dnn/front/lane/mask", 1)
    bench.peer.create_publisher(String, "/front/image_text", 1)
    bench.peer.create_subscription(Image, "/nobody_publishes", lambda message: None, 1)

    def lines() -> list[str]:  # others are about the kernel's buffers
        return [line for line in warned() if "no publisher on /front/image_raw" in line]

    start(bench)
    bench.until(lines, "a warning")
    (line,) = lines()
    assert "sensor_msgs/msg/Image: /front/image_rwa, /unlike" in line
    assert "camera.front.topic" in line
    assert "image_text" not in line
    assert "/nobody_publishes" not in line
    reports = len(bench.reports)
    bench.until(lambda: len(bench.reports) > reports + 10, "more checks")
    assert len(lines()) == 1  # once, not at each check
    camera = bench.peer.create_publisher(Image, TOPIC, 1)
    bench.until(lambda: "no publisher" not in bench.status("camera front").message, "a publisher")
    bench.peer.destroy_publisher(camera)
    bench.until(lambda: len(lines()) == 2, "the next episode")


def test_fewer_images_than_rate_hz_are_a_warning(bench: Bench) -> None:
    start(bench, rate_hz=1000.0)
    camera = bench.camera()
    for stamp in range(1, 10):
        reports = len(bench.reports)  # one each 0.1 s
        camera.publish(image(stamp=stamp))
        bench.until(lambda before=reports: len(bench.reports) > before, "a report")
    bench.until(lambda: "camera.front.rate_hz is 1000" in bench.status("camera front").message, "a warning")
    assert bench.status("camera front").level in (WARN, STALE)
