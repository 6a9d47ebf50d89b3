"""Records a camera with ``ros2 bag record`` and replays the recording with replay.launch.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ros_system import RosSystem, Running

FRAMES, RATE_HZ = 30, 10
TOPIC = "/usb/image"
PARAMETERS = """\
/**:
  ros__parameters:
    dnns: [lane, object]
    cpu_threads: 1
"""


@pytest.fixture(params=["rmw_cyclonedds_cpp", "rmw_fastrtps_cpp"])
def middleware(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """RMW implementation of the processes that the test starts."""
    monkeypatch.setenv("RMW_IMPLEMENTATION", request.param)
    return str(request.param)


@pytest.fixture
def parameters(tmp_path: Path) -> str:
    path = tmp_path / "parameters.yaml"
    path.write_text(PARAMETERS)
    return str(path)


def replay(ros: RosSystem, bag: Path, output: Path, parameters: str, *arguments: str) -> Running:
    """Run replay.launch.py until it ends."""
    launched = ros.start(
        *("ros2", "launch", "multi_dnn_ros", "replay.launch.py", f"bag:={bag}", f"output:={output}"),
        *(f"params_file:={parameters}", *arguments),
    )
    launched.process.wait(240.0)
    return launched


def last_line(running: Running) -> str:
    return running.text().strip().splitlines()[-1]


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_two_replays_of_a_recorded_camera_are_equal(
    ros: RosSystem, middleware: str, storage: str, parameters: str, tmp_path: Path
) -> None:
    from multi_dnn_ros.bags import BagReader

    bag = tmp_path / "drive"
    # Small images: larger ones do not all reach `ros2 bag record` with Cyclone DDS at its defaults.
    recorder = ros.start("ros2", "bag", "record", "--storage", storage, "--output", str(bag), "--topics", TOPIC)
    camera = ros.start(
        *("ros2", "run", "multi_dnn_ros", "multi-dnn", "camera", "scenes", "--size", "160x120", "--prepare"),
        *("--topic", TOPIC, "--rate", str(RATE_HZ), "--count", str(FRAMES), "--wait-for-subscribers", "1"),
    )
    assert camera.process.wait(120.0) == 0, camera.text()
    assert recorder.end() == 0, recorder.text()
    with BagReader(bag) as recorded:
        assert recorded.topics[TOPIC].count == FRAMES
    outputs = []
    for name, rate in (("first", "1.0"), ("second", "100.0")):  # the speed changes nothing but the time it takes
        launched = replay(ros, bag, tmp_path / name, parameters, f"image:={TOPIC}", f"rate:={rate}")
        assert launched.process.returncode == 0, launched.text()
        assert last_line(launched).endswith(f": {FRAMES} of {FRAMES} frames")
        outputs.append(files(tmp_path / name))
    assert outputs[0] == outputs[1]
    with BagReader(tmp_path / "first") as results:
        counts = {name.removeprefix("/multi_dnn/"): topic.count for name, topic in results.topics.items()}
        assert results.damage == []
    assert counts == {
        "front/lane/mask": FRAMES,
        "front/lane/points": FRAMES,
        "front/object/detections": FRAMES,
        "object/label_info": 1,
    }


@pytest.mark.timeout(600)
def test_the_launch_fails_if_a_frame_is_missing(
    ros: RosSystem, middleware: str, parameters: str, tmp_path: Path
) -> None:
    """In a namespace, from a recording with one image that cannot be decoded."""
    from rclpy.serialization import serialize_message
    from sensor_msgs.msg import Image

    from multi_dnn_ros.bags import BagWriter

    with BagWriter(tmp_path / "drive") as writer:
        writer.add_topic("/robot/front/image_raw", "sensor_msgs/msg/Image")
        for index in range(4):
            image = Image(width=320, height=240, step=960, encoding="rgb8", data=bytes(960 * 240 - (index == 2)))
            image.header.stamp.sec = index
            writer.write("/robot/front/image_raw", index * 100_000_000, serialize_message(image))
    launched = replay(ros, tmp_path / "drive", tmp_path / "results", parameters, "namespace:=robot")
    assert launched.process.returncode == 1
    assert last_line(launched).endswith(": 3 of 4 frames")
    streams = json.loads((tmp_path / "results" / "summary.json").read_text())["streams"]
    assert [(stream["published"], stream["dropped"]) for stream in streams] == [(3, {"bad_image": 1})] * 2


def test_an_existing_output_ends_the_launch(ros: RosSystem, middleware: str, parameters: str, tmp_path: Path) -> None:
    launched = replay(ros, tmp_path, tmp_path, parameters)
    assert launched.process.returncode == 1
    assert "already exists; nothing is overwritten" in launched.text()
    assert "configured:" not in launched.text()
