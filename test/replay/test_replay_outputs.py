"""``multi-dnn replay`` of a DNN with several results: each is recorded under its name; a frame counts once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from rclpy.serialization import serialize_message
from replay_fakes import parsed, read_bag
from std_msgs.msg import Header
from two_heads import LABELS, exported, picture

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.replay.storage_files import BagMessage
from multi_dnn_ros.ros.result_messages import class_names, image_message

TOPIC = "/front/image_raw"
FRAMES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording `drive` and the parameter file `road.yaml`."""
    path = tmp_path_factory.mktemp("outputs")
    with BagWriter(path / "drive", "mcap") as writer:
        writer.add_topic(TOPIC, "sensor_msgs/msg/Image")
        for number in range(FRAMES):
            header = Header(frame_id="lens")
            header.stamp.sec = 1 + number
            pixels = picture([(1 + number, 1)], [(6, 0)], slice(3, 6))
            writer.write(TOPIC, (1 + number) * 10**9, serialize_message(image_message(pixels, "rgb8", header)))
    road = {
        "role": "road", "model": str(exported(path)), "labels": LABELS, "resize": "stretch", "backend": "eager",
        "outputs": ["cars", "people", "free"],
        "output": {
            "cars": {"decoder": "yolo", "raw_outputs": ["0"], "keep": ["car"]},
            "people": {"decoder": "yolo", "raw_outputs": ["0"], "keep": ["person"]},
            "free": {"decoder": "drivable", "raw_outputs": ["1"]},
        },
    }  # fmt: skip
    parameters = {"device": "cpu", "dnns": ["road"], "dnn": {"road": road}}
    (path / "road.yaml").write_text(yaml.safe_dump({"/**": {"ros__parameters": parameters}}))
    return path


def check(results: list[BagMessage]) -> None:
    def on(name: str) -> list[object]:
        return [parsed(message) for message in results if message.topic == f"/multi_dnn/{name}"]

    for name, label in (("cars", "0"), ("people", "1")):
        found = on(f"front/road/{name}/detections")
        assert [len(message.detections) for message in found] == [1] * FRAMES
        assert {message.detections[0].results[0].hypothesis.class_id for message in found} == {label}
        (info,) = on(f"road/{name}/label_info")
        assert class_names(info) == {"0": "car", "1": "person"}
    masks = on("front/road/free/mask")
    assert len(masks) == FRAMES
    expected = np.where(np.arange(48) < 24, 0, 255)[:, None].repeat(64, 1)
    np.testing.assert_array_equal(np.frombuffer(masks[-1].data, np.uint8).reshape(48, 64), expected)


def test_replay_without_a_node(folder: Path) -> None:
    command = ["replay", str(folder / "drive"), str(folder / "results"), "--params-file", str(folder / "road.yaml")]
    assert main([*command, "--overlay", str(folder / "pictures")]) == 0
    check(read_bag(folder / "results"))
    metadata = yaml.safe_load((folder / "results" / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    topics = [entry["topic_metadata"] for entry in metadata["topics_with_message_count"]]
    latched = {topic["name"] for topic in topics if topic["offered_qos_profiles"]}  # also for late subscribers
    assert latched == {f"/multi_dnn/road/{name}/label_info" for name in ("cars", "people")}
    summary = json.loads((folder / "results" / "summary.json").read_text())
    assert f'"published": {FRAMES}' in json.dumps(summary)
    assert len(list((folder / "pictures").iterdir())) == FRAMES
