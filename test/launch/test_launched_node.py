"""The package built by colcon: launch files with the real node, and the `ros2` commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from rclpy.serialization import serialize_message
from ros_system import RosSystem
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray
from waiting import runs

from multi_dnn_ros.replay.bag_writer import BagWriter

pytestmark = [pytest.mark.ros, pytest.mark.timeout(600)]

PARAMETERS = """\
/**:
  ros__parameters:
    dnns: [object]
    dnn: {object: {backend: eager, jobs: 1}}
    diagnostics_period_s: 0.2
"""
OUT = "/multi_dnn/front/object/detections"


@pytest.fixture
def parameters(tmp_path: Path) -> str:
    path = tmp_path / "parameters.yaml"
    path.write_text(PARAMETERS)
    return str(path)


@pytest.fixture
def rosbag2() -> None:
    pytest.importorskip("rosbag2_py", reason="needs rosbag2")


def test_a_killed_node_is_respawned_in_its_namespace_and_ctrl_c_ends_everything_once(
    ros: RosSystem, parameters: str
) -> None:
    launched = ros.launch(
        *("multi_dnn.launch.py", "namespace:=robot", f"params_file:={parameters}", "image:=/usb/image"),
        *("respawn:=true", "log_level:=debug"),
    )
    heard = ros.listen("/robot" + OUT, Detection2DArray)
    ros.camera("--topic", "/usb/image")
    ros.until(lambda: heard, "detections")
    assert heard[0].header.frame_id == "front"
    killed = launched.child("multi_dnn_node")
    assert killed is not None
    engines = killed.children(recursive=True)
    assert engines
    killed.kill()
    ros.until(lambda: not any(runs(engine) for engine in engines), "the end of the engine processes")
    ros.until(lambda: (found := launched.child("multi_dnn_node")) and found.pid != killed.pid, "another process")
    ros.until(lambda: launched.text().count("]: active") == 2, "the node started again")
    known = len(heard)
    ros.until(lambda: len(heard) > known, "detections of the node started again")
    family = launched.family()
    assert launched.interrupt() == 0
    assert not any(runs(process) for process in family)
    assert launched.text().count("received SIGINT, shutting down") == 1
    assert "process has finished cleanly" in launched.text()
    assert "Traceback" not in launched.text()


def test_life_cycle_and_parameters_by_the_commands(ros: RosSystem, parameters: str, tmp_path: Path) -> None:
    ros.launch("multi_dnn.launch.py", f"params_file:={parameters}", "autostart:=false")
    heard = ros.listen(OUT, Detection2DArray)
    ros.camera()
    ros.until(lambda: "/multi_dnn" in ros.ros2("lifecycle", "nodes")[1], "the node")
    for transition, state in (("configure", "inactive"), ("activate", "active")):
        assert "Transitioning successful" in ros.ros2("lifecycle", "set", "/multi_dnn", transition)[1]
        assert ros.ros2("lifecycle", "get", "/multi_dnn")[1].startswith(state)
    ros.until(lambda: heard, "detections")
    threshold = "dnn.object.score_threshold"
    assert "Set parameter successful" in ros.ros2("param", "set", "/multi_dnn", threshold, "1.0")[1]
    ros.until(lambda: not heard[-1].detections, "empty arrays above the threshold")
    assert "Set parameter successful" not in ros.ros2("param", "set", "/multi_dnn", threshold, "1.5")[1]
    assert "1.0" in ros.ros2("param", "get", "/multi_dnn", threshold)[1]
    assert "read-only while the node is configured" in ros.ros2("param", "set", "/multi_dnn", "workers", "4")[1]
    dumped = tmp_path / "dumped.yaml"
    dumped.write_text(ros.ros2("param", "dump", "/multi_dnn")[1])
    code, text = ros.ros2("param", "load", "/multi_dnn", str(dumped))
    assert code == 0, text
    refused = [line for line in text.splitlines() if "failed" in line]
    assert all("start_type_description_service" in line for line in refused), text  # rclpy's own
    for transition, state in (("deactivate", "inactive"), ("cleanup", "unconfigured")):
        assert "Transitioning successful" in ros.ros2("lifecycle", "set", "/multi_dnn", transition)[1]
        assert ros.ros2("lifecycle", "get", "/multi_dnn")[1].startswith(state)


def test_the_launch_file_of_a_robot(ros: RosSystem, parameters: str) -> None:
    path = Path(parameters)
    path.write_text(path.read_text().replace("object", "lane"))
    launched = ros.launch("robot.launch.py", f"params_file:={path}", "namespace:=robot")
    ros.until(lambda: "]: active" in launched.text(), "the active node")
    ros.until(lambda: "/robot/front/image_raw" in dict(ros.node.get_topic_names_and_types()), "its topics")
    topics = dict(ros.node.get_topic_names_and_types())
    assert topics["/robot/lane_points"] == ["sensor_msgs/msg/PointCloud2"], topics
    assert "/robot/multi_dnn/front/lane/ground_points" not in topics
    assert launched.interrupt() == 0, launched.text()
    assert "Traceback" not in launched.text()


def images(path: Path, count: int, topic: str, bad: int | None = None) -> None:
    """A recording of images at 5 Hz from second 1,700,000,000; the data of number `bad` is too short."""
    with BagWriter(path) as writer:
        writer.add_topic(topic, "sensor_msgs/msg/Image")
        for number in range(count):
            data = bytes(960 * 240 - (number == bad))
            image = Image(width=320, height=240, step=960, encoding="rgb8", data=data)
            stamp_ns = 1_700_000_000 * 10**9 + number * 10**9 // 5
            image.header.stamp.sec, image.header.stamp.nanosec = divmod(stamp_ns, 10**9)
            writer.write(topic, stamp_ns, serialize_message(image))


def test_the_launch_of_a_replay_plays_every_frame_and_states_the_counts(
    ros: RosSystem, rosbag2: None, parameters: str, tmp_path: Path
) -> None:
    """The player waits until the node is active; the node states its counts at the end."""
    images(tmp_path / "drive", 4, "/robot/camera", bad=2)
    arguments = (f"bag:={tmp_path / 'drive'}", f"params_file:={parameters}", "namespace:=robot", "image:=/robot/camera")
    launched = ros.launch("replay.launch.py", *arguments)
    assert launched.process.wait(300.0) == 0, launched.text()
    assert "object on front: 3 of 4 frames published; dropped: 1 bad_image" in launched.text()


@pytest.mark.parametrize(("bag", "model"), [("nowhere", "builtin:object"), ("drive", "nowhere.onnx")])
def test_the_launch_of_a_replay_fails_without_a_recording_or_a_model(
    ros: RosSystem, rosbag2: None, parameters: str, tmp_path: Path, bag: str, model: str
) -> None:
    images(tmp_path / "drive", 4, "/front/image_raw")
    path = Path(parameters)
    path.write_text(path.read_text().replace("backend: eager", f"backend: eager, model: '{model}'"))
    launched = ros.launch("replay.launch.py", f"bag:={tmp_path / bag}", f"params_file:={path}")
    assert launched.process.wait(300.0) == 1, launched.text()
    assert "nowhere" in launched.text()
