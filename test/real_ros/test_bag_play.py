"""`ros2 bag play` of recordings of others on a real ROS 2: simulated time, repeated and compressed recordings."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ros_system import RosSystem, Running

PARAMETERS = """\
/**:
  ros__parameters:
    dnns: [object]
    device: cpu:1
    camera:
      front: {topic: /robot/sensors/front_left/color/image_raw}
    dnn:
      object: {model: "builtin:object_small", deadline_ms: 5000.0, max_rate_hz: 3.0, max_age_ms: 5000.0}
"""
TOPIC = "/robot/sensors/front_left/color/image_raw"
OUT = "/multi_dnn/front/object/detections"
#: Stamp of the first image, long ago.
BEGIN_S = 1_700_000_000
SECONDS = 4
RATE_HZ = 5


@pytest.fixture
def parameters(tmp_path: Path) -> str:
    path = tmp_path / "parameters.yaml"
    path.write_text(PARAMETERS)
    return str(path)


@pytest.fixture
def record(tmp_path: Path) -> Callable[[str, str], str]:
    """Writes a recording of 4 s with rosbag2; storage: mcap or sqlite3. compression: of files, messages, or none."""
    rosbag2 = pytest.importorskip("rosbag2_py")
    from rclpy.serialization import serialize_message
    from sensor_msgs.msg import Image

    def write(storage: str, compression: str) -> str:
        path = str(tmp_path / f"{storage}_{compression}")
        if compression == "none":
            writer = rosbag2.SequentialWriter()
        else:
            mode = rosbag2.CompressionMode.FILE if compression == "files" else rosbag2.CompressionMode.MESSAGE
            writer = rosbag2.SequentialCompressionWriter(rosbag2.CompressionOptions("zstd", mode, 0, 1))
        writer.open(rosbag2.StorageOptions(uri=path, storage_id=storage), rosbag2.ConverterOptions("cdr", "cdr"))
        kind = "sensor_msgs/msg/Image"
        writer.create_topic(rosbag2.TopicMetadata(id=0, name=TOPIC, type=kind, serialization_format="cdr"))
        image = Image(height=60, width=80, encoding="bgr8", step=240, data=bytes(60 * 240))
        image.header.frame_id = "front_left"
        for number in range(SECONDS * RATE_HZ):
            stamp_ns = BEGIN_S * 1_000_000_000 + number * 1_000_000_000 // RATE_HZ
            image.header.stamp.sec, image.header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)
            writer.write(TOPIC, serialize_message(image), stamp_ns)
        del writer  # closes the recording; the one for compressed recordings has no close() on Jazzy
        return path

    return write


def start_node(ros: RosSystem, parameters: str, *arguments: str) -> Running:
    node = ros.start(
        *("ros2", "run", "multi_dnn_ros", "multi_dnn_node", "--ros-args", "--params-file", parameters, *arguments)
    )
    ros.until(lambda: "]: active" in node.text(), "the active node")
    return node


def values(reports: list[Any], name: str) -> dict[str, str]:
    """The values of the newest status of this name."""
    for status in (status for report in reversed(reports) for status in report.status):
        if status.name == f"multi_dnn: {name}":
            return {item.key: item.value for item in status.values}
    return {}


def test_a_repeated_recording_with_simulated_time(
    ros: RosSystem, parameters: str, record: Callable[[str, str], str]
) -> None:
    from diagnostic_msgs.msg import DiagnosticArray
    from vision_msgs.msg import Detection2DArray

    node = start_node(ros, parameters, "-p", "use_sim_time:=true")
    heard, reports = ros.listen(OUT, Detection2DArray), ros.listen("/diagnostics", DiagnosticArray)
    player = ros.start("ros2", "bag", "play", record("mcap", "none"), "--clock", "50", "--loop")

    def stamps() -> list[int]:
        return [message.header.stamp.sec for message in heard]

    ros.until(
        lambda: sum(later < earlier for earlier, later in zip(stamps(), stamps()[1:], strict=False)) >= 2,
        "the third round",
    )
    begin, before = time.monotonic(), len(heard)
    ros.until(lambda: time.monotonic() - begin > 6.0, "results after time was set back")
    rate_hz = (len(heard) - before) / (time.monotonic() - begin)
    assert 1.5 < rate_hz < 3.5  # max_rate_hz still counts real time
    assert {message.header.frame_id for message in heard} == {"front_left"}
    assert {*stamps()} <= {*range(BEGIN_S, BEGIN_S + SECONDS)}
    assert BEGIN_S <= reports[-1].header.stamp.sec <= BEGIN_S + SECONDS
    for name, key in (("camera front", "header stamp to arrival"), ("object on front", "header stamp to publish")):
        assert abs(float(values(reports, name)[f"{key} p50 (ms)"])) < 2000.0
    assert values(reports, "object on front")["deadline misses"] == "0"
    assert values(reports, "object on front")["dropped: too_old"] == "0"
    assert values(reports, "camera front")["missing of the last 10 s (%)"] == "0.0"
    player.end()
    assert "the stamps of the images" not in node.text()
    assert "/clock" not in node.text()


@pytest.mark.parametrize(
    ("storage", "compression", "simulated", "warning"),
    [
        ("sqlite3", "files", "true", "use_sim_time is true, but nothing publishes /clock"),
        ("mcap", "messages", "false", "older than the clock of the node"),
    ],
)
def test_a_recording_without_a_clock_is_reported(
    ros: RosSystem,
    parameters: str,
    record: Callable[[str, str], str],
    storage: str,
    compression: str,
    simulated: str,
    warning: str,
) -> None:
    from vision_msgs.msg import Detection2DArray

    node = start_node(ros, parameters, "-p", f"use_sim_time:={simulated}")
    heard = ros.listen(OUT, Detection2DArray)
    ros.start("ros2", "bag", "play", record(storage, compression), "--loop")
    ros.until(lambda: warning in node.text(), "the warning")
    ros.until(lambda: heard, "results")
    assert heard[-1].header.stamp.sec in range(BEGIN_S, BEGIN_S + SECONDS)


def test_a_node_that_has_ended_is_gone_from_the_list_of_nodes(ros: RosSystem, parameters: str) -> None:
    node = start_node(ros, parameters)
    ros.until(lambda: "multi_dnn" in ros.node.get_node_names(), "the node")
    os.killpg(node.process.pid, signal.SIGINT)
    assert node.process.wait(20.0) == 0
    ros.until(lambda: "multi_dnn" not in ros.node.get_node_names(), "the end of the node", limit_s=3.0)
