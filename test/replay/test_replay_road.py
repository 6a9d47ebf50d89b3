"""``multi-dnn replay`` with the DNNs that come with the package, on generated road with known ground truth."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from replay_fakes import parsed, read_bag, write_bag
from road_bag import OBJECTS, PEOPLE, TOPIC, box_score, lane_score, scenes, stamp_ns, write_road
from std_msgs.msg import String
from tiny_exports import TinyMap, export

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.models.builtin import SCORE_THRESHOLDS
from multi_dnn_ros.replay.storage_files import BagMessage
from multi_dnn_ros.training.scenes import Scene

FRAMES = 12
LATCHED = 2  # messages that are written once


@pytest.fixture(scope="module")
def drive() -> list[Scene]:
    return scenes(FRAMES)


@pytest.fixture(scope="module")
def recording(drive: list[Scene], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_road(tmp_path_factory.mktemp("road") / "drive", drive)


@pytest.fixture(scope="module")
def replayed(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("replayed")
    command = ["replay", str(recording), str(out / "results"), "--device", "cpu"]
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main([*command, "--overlay", str(out / "overlay.mp4")]) == 0
    (out / "said.txt").write_text(said.getvalue())
    return out


@pytest.fixture(scope="module")
def one_dnn(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A parameter file."""
    path = tmp_path_factory.mktemp("parameters") / "one.yaml"
    path.write_text("/**:\n  ros__parameters: {dnns: [object]}\n")
    return str(path)


@pytest.fixture(scope="module")
def tiny_dnn(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A parameter file with a network that is traced quickly and the backend that is ready first."""
    folder = tmp_path_factory.mktemp("parameters")
    model = export(TinyMap(), folder / "lanes.onnx")
    parameters = f"{{role: lane, model: {model}, decoder: lane, backend: eager, jobs: 1}}"
    path = folder / "tiny.yaml"
    path.write_text(f"/**:\n  ros__parameters: {{dnns: [lane], dnn: {{lane: {parameters}}}}}\n")
    return str(path)


@pytest.fixture(scope="module")
def results(replayed: Path) -> list[BagMessage]:
    return read_bag(replayed / "results")


def on(results: list[BagMessage], name: str) -> list[object]:
    return [parsed(message) for message in results if message.topic == f"/multi_dnn/front/{name}"]


def test_detections_are_where_the_truth_is(results: list[BagMessage], drive: list[Scene]) -> None:
    # Only a few frames; the models' scores are measured on thousands, see results/.
    objects, people = (parsed(message) for message in results[:2])
    assert box_score(on(results, "object/detections"), objects, drive, OBJECTS) >= 0.6
    assert box_score(on(results, "pedestrian/detections"), people, drive, PEOPLE) >= 0.6
    assert lane_score(on(results, "lane/mask"), on(results, "lane/points"), drive) >= 0.7


def test_class_names_come_first_and_are_kept_for_late_subscribers(replayed: Path, results: list[BagMessage]) -> None:
    assert [message.topic for message in results[:2]] == [
        "/multi_dnn/object/label_info",
        "/multi_dnn/pedestrian/label_info",
    ]
    assert [[label.class_name for label in parsed(message).class_map] for message in results[:2]] == [
        ["car", "truck"],
        ["pedestrian"],
    ]
    assert [[label.class_id for label in parsed(message).class_map] for message in results[:2]] == [[0, 1], [0]]
    assert [parsed(message).threshold for message in results[:2]] == [
        np.float32(SCORE_THRESHOLDS[name]) for name in ("object", "pedestrian")
    ]
    assert {message.stamp_ns for message in results[:2]} == {stamp_ns(0) + 3_000_000}
    topics = yaml.safe_load((replayed / "results" / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    latched = {
        entry["topic_metadata"]["name"]
        for entry in topics["topics_with_message_count"]
        if entry["topic_metadata"]["offered_qos_profiles"]
    }
    assert latched == {message.topic for message in results[:2]}


def test_accounts_add_up(replayed: Path) -> None:
    summary = json.loads((replayed / "results" / "summary.json").read_text())
    assert summary["input_damage"] == []
    assert [stream["dnn"] for stream in summary["streams"]] == ["lane", "object", "pedestrian"]
    for stream in summary["streams"]:
        assert (stream["offered"], stream["published"]) == (FRAMES, FRAMES - 1)
        assert stream["dropped"] == {"bad_image": 1}
        assert "data has 921599 bytes" in stream["first_drops"]["bad_image"]


def test_second_replay_is_equal_byte_for_byte(
    drive: list[Scene], results: list[BagMessage], one_dnn: str, tmp_path: Path
) -> None:
    """Even if the recording is in the other storage format and fewer DNNs and threads run."""
    recording = write_road(tmp_path / "drive", drive, "sqlite3")
    (file,) = recording.glob("*.db3")
    command = ["replay", str(file), str(tmp_path / "results"), "--device", "cpu", "--storage", "sqlite3"]
    assert main([*command, "--params-file", one_dnn, "--with-input"]) == 0
    again = read_bag(tmp_path / "results")
    expected = [message for message in results if "/object/" in message.topic]
    assert len(expected) == FRAMES  # one frame is damaged; the class names are one more message
    assert [message for message in again if message.topic != TOPIC] == expected
    assert [message for message in again if message.topic == TOPIC] == read_bag(recording)


def test_topic_by_name_and_its_errors(
    drive: list[Scene], tiny_dnn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import road_bag

    (frame,) = read_bag(write_road(tmp_path / "one", drive[:1]))
    image = (frame.msgtype, frame.data)
    bag = str(write_bag(tmp_path / "two", [("/left", 1, image), ("/right", 2, image), ("/chat", 3, String(data="x"))]))
    out = str(tmp_path / "results")
    for topic, text in (
        ([], "no topic /front/image_raw or /front/image_raw/compressed for camera 'front'; it has /left"),
        (["--topic", "front:=/up"], "no topic /up for camera 'front'"),
        (["--topic", "rear:=/left"], "--topic names camera 'rear'; the cameras are front"),
        (["--topic", "front:=/chat"], "topic /chat of bag"),
    ):
        assert main(["replay", bag, out, *topic]) == 1
        assert text in capsys.readouterr().err
        assert not Path(out).exists()
    chosen = ["--topic", "front:=/right", "--device", "cpu", "--node", "/car/dnn", "--params-file", tiny_dnn]
    assert main(["replay", bag, out, *chosen]) == 0
    assert {message.topic[: len("/car/dnn/")] for message in read_bag(Path(out))} == {"/car/dnn/"}
    assert {message.stamp_ns for message in read_bag(Path(out))} == {2}
    assert road_bag.TOPIC not in {message.topic for message in read_bag(Path(out))}


def test_recording_without_frames_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bag = write_road(tmp_path / "empty", [])
    assert main(["replay", str(bag), str(tmp_path / "results")]) == 1
    assert f"bag {bag} holds no message on /front/image_raw" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
