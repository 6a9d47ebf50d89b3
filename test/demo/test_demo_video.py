"""``multi-dnn demo --video``: from any video and model to an annotated video, a table, JSON and a recording."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import pytest
import two_heads
from tiny_exports import TinyYolo, export

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.replay.bag_writer import BagWriter
from multi_dnn_ros.training.scenes import SceneGenerator

FRAMES = 6


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drive on a generated road, 5 frames per second."""
    path = tmp_path_factory.mktemp("video") / "drive.mp4"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 5.0, (320, 240))
    generator = SceneGenerator(320, 240, 3)
    for number in range(FRAMES):
        writer.write(generator.scene(number).image[..., ::-1])
    writer.release()
    return path


def run(*arguments: str | Path) -> int:
    return main(["demo", "--device", "cpu", *map(str, arguments)])


def test_a_model_of_the_user_needs_only_a_file_name(
    video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = export(TinyYolo(80), tmp_path / "mine.onnx")
    out = tmp_path / "out"
    assert run("--video", video, "--model", f"object={model}", "--output", out, "--seconds", "0.6") == 0
    assert "mine.onnx has no class names; assumed: coco80" in capsys.readouterr().err
    figures = json.loads((out / "summary.json").read_text())["dnns"]["object"]
    assert figures["published"] == 3
    assert run("--video", video, "--model", f"object={model}", "--output", out, "--seconds", "0.2") == 0
    assert json.loads((out / "summary.json").read_text())["dnns"]["object"]["published"] == 1


def test_results_of_several_outputs_and_of_instance_masks_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, out, robot = tmp_path / "images", tmp_path / "out", tmp_path / "robot.yaml"
    images.mkdir()
    for number in range(2):
        cells = two_heads.picture([(1, 1), (5, 3)], [(6 - number, 0)], slice(4, 6))
        cv2.imwrite(str(images / f"{number}.png"), cells[..., ::-1])
    common = {"role": "any", "labels": two_heads.LABELS, "resize": "stretch", "backend": "eager", "jobs": 1}
    several = {
        "model": str(two_heads.exported(tmp_path)), "outputs": ["cars", "free"],
        "output": {
            "cars": {"decoder": "yolo", "raw_outputs": ["0"], "keep": ["car"]},
            "free": {"decoder": "drivable", "raw_outputs": ["1"]},
        },
    }  # fmt: skip
    masks = {"model": str(two_heads.exported(tmp_path, two_heads.Instances)), "decoder": "yolo_instances"}
    area = {**several, "outputs": ["free"], "output": {"free": {"decoder": "drivable", "raw_outputs": ["1"]}}}
    dnns = {name: {**common, **dnn} for name, dnn in {"several": several, "masks": masks, "area": area}.items()}
    robot.write_text(json.dumps({"/**": {"ros__parameters": {"dnns": list(dnns), "dnn": dnns}}}))
    assert run("--video", images, "--params-file", robot, "--output", out) == 0
    found = json.loads((out / "summary.json").read_text())["dnns"]
    assert found["several"]["by_class"] == {"car": 4}
    assert found["masks"]["by_class"] == {"car": 4, "person": 2}
    assert found["area"]["by_class"] == {}
    assert "car 4, person 2" in capsys.readouterr().out


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["bag", "overlay.mp4"])
def test_files_that_no_demo_wrote_are_not_deleted(
    name: str, video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    if name == "bag":
        with BagWriter(out / "bag") as writer:
            writer.add_topic("/front/image_raw", "sensor_msgs/msg/Image")
    else:
        out.mkdir()
        (out / name).write_text("mine")
    before = files(out)
    for demo in (["--video", str(video)], []):
        assert main(["demo", *demo, "--output", str(out)]) == 2
        assert f"{out / name} exists and is not of a demo" in capsys.readouterr().err
    assert files(out) == before


def test_an_error_is_reported_in_one_line(video: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty, mine = tmp_path / "empty.mp4", tmp_path / "mine"
    empty.write_bytes(b"")
    mine.mkdir()
    (mine / "bag").mkdir()
    lane = ["--model", "lane=builtin:lane_small"]
    for code, message, arguments in [
        (2, "--model needs --video", lane),
        (2, "--rate is for the generated road", ["--video", video, "--rate", "3"]),
        (2, "nothing.mp4 does not exist", ["--video", tmp_path / "nothing.mp4", *lane]),
        (2, "names a DNN twice", ["--video", video, *lane, *lane]),
        (2, "exists and is not of a demo", ["--video", video, *lane, "--output", mine]),
        (2, "is in the folder of --output", ["--video", video, *lane, "--output", video.parent]),
        (2, "give only one of them", ["--video", video, *lane, "--params-file", "x.yaml"]),
        (1, "empty.mp4 is empty", ["--video", empty, *lane]),
    ]:
        assert main(["demo", *map(str, arguments)]) == code, message
        assert message in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(SystemExit):
        main(["demo", "--video", str(video), "--model", "yolo.onnx"])
    assert "'yolo.onnx' is not NAME=MODEL" in capsys.readouterr().err
