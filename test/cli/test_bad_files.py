"""Damaged files, wrong parameters and full disks, through the command."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image
from small_disk import small_disk

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.demo.children import Child, loopback_environment
from multi_dnn_ros.replay.bag_reader import BagReader
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.vision.overlay_files import OverlayFileError, OverlayFiles, save_picture

HEAD = "/**:\n  ros__parameters:\n"
NOISE = np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)
JPEG, PNG = (cv2.imencode(end, NOISE)[1].tobytes() for end in (".jpg", ".png"))
LIMIT_BYTES = 400_000


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The last line on the standard error output of a command that fails."""
    assert main(arguments) == 1
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("yaml", "words"),
    [
        (HEAD + "    polciy: edf\n", ["parameter polciy: no such parameter", "policy"]),
        (HEAD + "    dnn: {object: {score_treshold: 0.3}}\n", ["dnn.object.score_treshold", "score_threshold"]),
        (HEAD + "    workers: 99\n", ["parameter workers is 99", "0 to 16"]),
        (HEAD + "    aging_ms: .nan\n", ["parameter aging_ms is nan", "up to 60000"]),
        (HEAD + "    workers: two\n", ["parameter workers is 'two'", "int"]),
        (HEAD + "    cameras: [front, front]\n", ["parameter cameras", "'front' twice"]),
        (
            HEAD + "    camera:\n      front: {depth: 2}\n      front: {depth: 3}\n",
            ["'front' is given", "line 5"],
        ),
        (HEAD + "    device: 2001-99-99\n", ["parameter device is '2001-99-99'; allowed"]),
        (HEAD + f"    workers: {'9' * 5000}\n", ["parameter workers is '999999"]),
        (HEAD + "    workers: !!int x\n", ["not a YAML file", "'x'"]),
        (HEAD + "    autostart: !!bool x\n", ["not a YAML file", "'x'"]),
        (HEAD + "    autostart: !!timestamp x\n", ["not a YAML file"]),
        (HEAD + "    cameras: !!set x\n", ["not a YAML file", "not a mapping"]),
        (HEAD + "    device: !!python/object/apply:os.system [ls]\n", ["not a YAML file", "constructor"]),
        ("a: &a [1]\nb: *a\n", ["not a YAML file", "aliases"]),
        ("nonsense", ["no parameters for node '/multi_dnn'"]),
    ],
)
def test_a_wrong_parameter_file(
    tmp_path: Path, yaml: str, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "robot.yaml"
    path.write_text(yaml)
    error = error_of(["replay", "in", "out", "--params-file", str(path)], capsys)
    assert error.startswith(f"multi-dnn replay: error: {path}: ")
    assert [word for word in words if word not in error] == []


@pytest.mark.usefixtures("forked_children")
def test_the_node_stays_up_with_a_wrong_parameter_file(domain: int, tmp_path: Path) -> None:
    """As a process: all mistakes are in its log, it stays unconfigured and ends on a signal."""
    path = tmp_path / "robot.yaml"
    path.write_text(HEAD + "    polciy: edf\n    workers: 99\n    device: 7\n")
    wanted = ("parameter polciy: no such", "parameter workers is 99; allowed", "parameter device is 7; allowed: auto")
    command = ["run", "--params-file", str(path)]
    with Child("node", command, tmp_path / "node.log", loopback_environment(domain)) as node:
        deadline = time.monotonic() + 60.0
        while not all(words in node.log.read_text() for words in wanted):
            assert node.exit_code() is None, node.last_lines(20)
            assert time.monotonic() < deadline, node.last_lines(20)
            time.sleep(0.05)
        assert not psutil.Process(node.pid).children(), "an engine process was started for wrong parameters"
        node.send(signal.SIGINT)
        assert node.stop()
        assert node.exit_code() == 0


@pytest.mark.usefixtures("forked_children")
def test_the_node_names_a_file_that_is_not_a_parameter_file(domain: int, tmp_path: Path) -> None:
    path = tmp_path / "robot.yaml"
    path.write_text(HEAD + "    cameras: [a\n")
    with Child("node", ["run", "--params-file", str(path)], tmp_path / "log", loopback_environment(domain)) as node:
        deadline = time.monotonic() + 60.0
        while node.exit_code() is None:
            assert time.monotonic() < deadline, node.last_lines(20)
            time.sleep(0.05)
        assert node.exit_code() == 1
        assert f"parameter file {path} of node multi_dnn: not a parameter file: " in node.last_lines(1)


def jpeg_claiming(width: int, height: int) -> bytes:
    """A JPEG whose header says this size."""
    at = JPEG.index(b"\xff\xc0") + 5
    return JPEG[:at] + struct.pack(">HH", height, width) + JPEG[at + 4 :]


PICTURES = {
    "half.jpg": (JPEG[: len(JPEG) // 2], "truncated"),
    "half.png": (PNG[: len(PNG) // 2], "truncated"),
    "spoilt.png": (PNG[:1000] + b"x" + PNG[1001:], "wrong checksum"),
    "bomb.jpg": (jpeg_claiming(60_000, 60_000), "60000 x 60000 pixels; allowed: at most"),
    "bomb.bmp": (b"BM" + struct.pack("<IIIIiiHH", 99, 0, 54, 40, 60_000, 60_000, 1, 24) + bytes(24), "decoded"),
    "bomb.ppm": (b"P6 60000 60000 255\n" + bytes(100), "decoded"),
    "empty.jpg": (b"", "cannot be decoded"),
    "text.png": (b"not an image", "cannot be decoded"),
}
_READER = """
import resource, sys
from pathlib import Path
from multi_dnn_ros.cli import main as cli
cli.main(["camera", "nowhere"])
from multi_dnn_ros.camera.sources import ImageSource, SourceError
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), used + (1 << 30)))
for path in sys.argv[1:]:
    try:
        list(ImageSource(Path(path)).items())
    except SourceError as error:
        print(error)
"""


def test_a_damaged_image_is_named_and_its_stated_size_is_not_allocated(tmp_path: Path) -> None:
    """The image source of `multi-dnn camera`, in a process that cannot allocate 10 GB for one image."""
    for name, (content, _) in PICTURES.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-c", _READER, *(str(tmp_path / name) for name in PICTURES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    errors = done.stdout.splitlines()
    assert len(errors) == len(PICTURES)
    for error, (name, (_, words)) in zip(errors, PICTURES.items(), strict=True):
        assert error.startswith(f"image {tmp_path / name}")
        assert words in error


def noise_image() -> bytes:
    message = Image(width=320, height=240, encoding="rgb8", step=960)
    message.data = os.urandom(230_400)
    return bytes(serialize_message(message))


def noise_bag(path: Path, count: int, storage: str = "mcap") -> None:
    with BagWriter(path, storage) as writer:
        writer.add_topic("/front/image_raw", "sensor_msgs/msg/Image")
        for index in range(count):
            writer.write("/front/image_raw", index, noise_image())


def test_a_full_disk_leaves_no_broken_video(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """OpenCV's writer itself reports no error."""

    def draw(count: int) -> None:
        with OverlayFiles(tmp_path / "drive.mp4") as video:
            for index in range(count):
                video.write(np.roll(NOISE, index * 7, axis=1), index * 10**8)

    with (
        small_disk(LIMIT_BYTES),
        pytest.raises(OverlayFileError, match=r"video .*drive\.mp4 cannot be written: it has \d+ of 40"),
    ):
        draw(40)
    assert list(tmp_path.iterdir()) == []
    draw(3)
    assert [path.name for path in tmp_path.iterdir()] == ["drive.mp4"]


def test_a_full_disk_leaves_no_broken_image(tmp_path: Path) -> None:
    picture = np.random.default_rng(1).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    with (
        small_disk(LIMIT_BYTES),
        pytest.raises(OverlayFileError, match=r"picture .*000000\.png cannot be written: File too"),
        OverlayFiles(tmp_path / "pictures") as pictures,
    ):
        pictures.write(picture, 0)
    assert not (tmp_path / "pictures").exists()
    save_picture(tmp_path / "found.png", np.zeros((48, 64, 3), np.uint8))
    with (
        small_disk(LIMIT_BYTES),
        pytest.raises(OverlayFileError, match=r"picture .*found\.png cannot be written: File too"),
    ):
        save_picture(tmp_path / "found.png", picture)
    assert cv2.imread(str(tmp_path / "found.png")).shape == (48, 64, 3)  # still the former picture
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.png"]


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a recording `in` and the parameter file `one.yaml`."""
    monkeypatch.chdir(tmp_path)
    noise_bag(tmp_path / "in", 8)
    (tmp_path / "one.yaml").write_text(
        HEAD + "    dnns: [object]\n    dnn: {object: {backend: eager, jobs: 1}}\n    device: cpu\n"
    )
    return tmp_path


@pytest.mark.parametrize("overlay", ["seen.mp4", "pictures"])
def test_a_replay_keeps_its_results_if_the_overlay_does_not_fit_on_the_disk(
    drive: Path, overlay: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(100_000):
        assert main(["replay", "in", "out", "--params-file", "one.yaml", "--overlay", overlay]) == 1
    said = capsys.readouterr()
    assert overlay in said.err.splitlines()[-1]
    assert "cannot be written" in said.err
    assert "the recording of the results is complete" in said.err
    assert said.out.splitlines()[-1] == "written to out"
    with BagReader(drive / "out") as bag:
        assert sum(message.topic.endswith("detections") for message in bag.messages()) == 8
    assert not (drive / "seen.mp4").exists()


@pytest.mark.parametrize("overlay", ["seen.mp4", "pictures"])
def test_a_replay_whose_dnn_cannot_be_prepared_leaves_no_overlay(
    drive: Path, overlay: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the same command fails again after its parameters were corrected, because the folder exists."""
    (drive / "none.onnx").write_text("")
    command = ["replay", "in", "out", "--params-file", "one.yaml", "--overlay", overlay]
    (drive / "bad.yaml").write_text((drive / "one.yaml").read_text().replace("{backend", "{model: none.onnx, backend"))
    assert main([*command[:4], "bad.yaml", *command[5:]]) == 1
    assert "none.onnx" in capsys.readouterr().err
    assert not (drive / overlay).exists()
    assert main(command) == 0


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ("out/seen.mp4", "is in OUT_BAG"),
        ("out", "is in OUT_BAG"),
        ("seen.avi", "allowed: a name that ends in .mp4, or a folder"),
        ("there", "already exists"),
    ],
)
def test_a_wrong_overlay_is_reported_before_any_dnn_is_prepared(
    drive: Path, overlay: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (drive / "there").mkdir()
    assert main(["replay", "in", "out", "--params-file", "one.yaml", "--overlay", overlay]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "preparing" not in error
    assert not (drive / "out").exists()


def test_the_overlay_of_each_camera_must_be_new(drive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (drive / "two.yaml").write_text(HEAD + "    cameras: [front, rear]\n    dnns: [object]\n    device: cpu\n")
    (drive / "seen_rear.mp4").write_text("mine")
    assert main(["replay", "in", "out", "--params-file", "two.yaml", "--overlay", "seen.mp4"]) == 2
    error = capsys.readouterr().err
    assert "seen_rear.mp4 already exists" in error
    assert "preparing" not in error
    assert (drive / "seen_rear.mp4").read_text() == "mine"


def test_a_failing_replay_prints_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    noise_bag(tmp_path / "in", 1)
    (tmp_path / "robot.yaml").write_text(
        "multi_dnn:\n  ros__parameters:\n    device: cpu\n    dnns: [object, lane]\n"
        "    dnn: {object: {keep: [cat]}, lane: {model: a.pt2}}\n"
    )
    last = error_of(["replay", "in", "out", "--params-file", "robot.yaml"], capsys)
    assert "dnn.object.keep = ['cat']: no class 'cat'" in last
    assert "dnn.lane.model is 'a.pt2': there is no such file" in last
    assert not (tmp_path / "out").exists()
