"""Offline commands on tiny inputs: the files that they write, what these are worth, and exit codes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from bag_files import BLOCKS, read_results
from command import blocks_file, run_commands, succeed, values_of, write_parameters
from harness import ALL, LIMIT_S, Client, installed, pixels_of
from networks import LABELS, block_boxes, block_image, write_onnx, write_pt2
from sensor_msgs.msg import CompressedImage, Image

PICTURES = [block_image(*blocks) for blocks in BLOCKS]

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that find blocks, and data: `coco/` with images of blocks, `classes/` with reddish and bluish ones."""
    folder: Path = tmp_path_factory.mktemp("tools")
    write_onnx("yolo", folder / "yolo.onnx")
    write_onnx("detr_sigmoid", folder / "detr.onnx")
    write_pt2(folder / "network.pt2")
    images, truth = [], []
    write_pictures(folder / "coco" / "val", PICTURES)
    for number, blocks in enumerate(BLOCKS):
        rows, columns = PICTURES[number].shape[:2]
        images.append({"id": number, "file_name": f"{number}.png", "width": columns, "height": rows})
        for label, _, x, y, width, height in block_boxes(*blocks):
            box = {"bbox": [x - width / 2, y - height / 2, width, height], "area": width * height, "iscrowd": 0}
            truth.append({"id": len(truth) + 1, "image_id": number, "category_id": int(label) + 1, **box})
    names = [{"id": number + 1, "name": name} for number, name in enumerate(LABELS)]
    content = json.dumps({"images": images, "annotations": truth, "categories": names})
    (folder / "coco" / "annotations").mkdir()
    for part in ("train", "val"):
        (folder / "coco" / "annotations" / f"instances_{part}.json").write_text(content)
    shutil.copytree(folder / "coco" / "val", folder / "coco" / "train")
    noise = np.random.default_rng(0).integers(0, 80, (280, 32, 32, 3), dtype=np.uint8)
    noise[:140, ..., 0] += 150
    noise[140:, ..., 2] += 150
    for first, name in ((0, "reddish"), (140, "bluish")):
        write_pictures(folder / "classes" / "train" / name, noise[first : first + 120])
        write_pictures(folder / "classes" / "val" / name, noise[first + 120 : first + 140])
    return folder


def write_pictures(folder: Path, pictures: Sequence[np.ndarray]) -> Path:
    """Write RGB images as 0.png, 1.png, ..."""
    folder.mkdir(parents=True)
    for number, picture in enumerate(pictures):
        cv2.imwrite(str(folder / f"{number}.png"), picture[..., ::-1])
    return folder


def report_of(place: Path) -> Any:
    """The only JSON file of a report."""
    (file,) = place.glob("*.json")
    return json.loads(file.read_text())


def test_decompose_and_evaluate(folder: Path, tmp_path: Path) -> None:
    """Fewer MACs as asked for, nearly the same scores on generated roads, and reports of both."""
    small = tmp_path / "small.safetensors"
    options = ["--ranks", "budget", "--macs-cut", "0.4", "--output", small, "--report", tmp_path / "decomposed"]
    done = succeed("decompose", "builtin:object", *options)
    cut = re.search(r"MACs.*-(\d+(\.\d+)?) ?%", done.stdout)
    assert cut is not None
    assert float(cut[1]) == pytest.approx(40, abs=2)
    assert report_of(tmp_path / "decomposed")["macs"]["cut"] == pytest.approx(0.4, abs=0.02)
    options = ["--data", f"road:{tmp_path / 'road'}", "--scenes", "12", "--limit", "6"]
    succeed("evaluate", "builtin:object", small, *options, "--report", tmp_path / "scores")
    original, decomposed = values_of(report_of(tmp_path / "scores"), "map50")
    assert original > 0.7
    assert decomposed == pytest.approx(original, abs=0.2)


def test_evaluate_model_files(folder: Path, tmp_path: Path) -> None:
    """Networks without a fault have a mAP of 1; --params-file scores a DNN as it is configured."""
    options = ["--data", f"coco:{folder / 'coco'}", "--report"]
    file = blocks_file(tmp_path)
    files = [folder / "yolo.onnx", folder / "detr.onnx", folder / "network.pt2"]
    done = run_commands({
        "files": ["evaluate", *files, "--labels", *LABELS, *options, tmp_path / "files"],
        "configured": ["evaluate", "--params-file", file, *options, tmp_path / "configured"],
    })  # fmt: skip
    for name, count in {"files": 3, "configured": 1}.items():
        assert done[name].returncode == 0, done[name].stderr
        assert values_of(report_of(tmp_path / name), "map50") == [pytest.approx(1)] * count


def test_retrain_learns(folder: Path, tmp_path: Path) -> None:
    """A classifier with random weights tells two colours apart after two epochs; the file holds what was learnt."""
    output, data = tmp_path / "trained.safetensors", f"classes:{folder / 'classes'}"
    succeed(
        "retrain", "torchvision:squeezenet1_1", "--weights", "random", "--num-classes", "2", "--size", "32x32",
        "--data", data, "--epochs", "2", "--batch-size", "16", "--output", output, "--report", tmp_path / "report",
        "--checkpoint", tmp_path / "run.ckpt",
    )  # fmt: skip
    assert report_of(tmp_path / "report")["training"]["test_scores"]["after"]["top1"] == pytest.approx(1)
    succeed("evaluate", output, "--data", data, "--report", tmp_path / "scores")
    assert values_of(report_of(tmp_path / "scores"), "top1") == [pytest.approx(1)]


def test_build_fills_the_caches(folder: Path, own_cache: Path, tmp_path: Path) -> None:
    dnn = {"role": "object", "model": str(write_pt2(tmp_path / "network.pt2")), "labels": LABELS}
    file = write_parameters(tmp_path / "robot.yaml", {"object": dnn})
    summary = tmp_path / "summary.json"
    done = succeed("build", file, "--output", summary)
    assert "object" in done.stdout
    assert "object" in json.loads(summary.read_text())["dnns"]
    assert any(file.is_file() for file in (own_cache / "multi_dnn_ros").rglob("*"))


def test_demo_on_a_video(folder: Path, tmp_path: Path) -> None:
    """Any model on any video: a video with the results drawn, figures, and a recording."""
    video = write_video(tmp_path / "drive.mp4")
    (tmp_path / "yolo.onnx").write_bytes((folder / "yolo.onnx").read_bytes())
    (tmp_path / "yolo.yaml").write_text(f"labels: {json.dumps(LABELS)}\n")  # beside the model
    output = tmp_path / "out"
    succeed("demo", "--video", video, "--model", f"object={tmp_path / 'yolo.onnx'}", "--output", output)
    assert {"overlay.mp4", "overlay.png", "summary.json", "bag"} <= {file.name for file in output.iterdir()}
    results = read_results(output / "bag")["/multi_dnn/front/object/detections"]
    assert [len(message.detections) for _, message in results] == [2] * len(PICTURES)


def write_video(path: Path) -> Path:
    side = PICTURES[0].shape[0]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 10, (side, side))
    for picture in PICTURES:
        writer.write(np.ascontiguousarray(picture[..., ::-1]))
    writer.release()
    return path


def test_camera_publishes_images_and_videos(client: Client, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures", PICTURES)
    video = write_video(tmp_path / "drive.mp4")
    cameras: dict[str, list[str | Path]] = {
        "/images/image_raw": [pictures, "--encoding", "bgr8", "--rate", "20"],
        "/looped/image_raw/compressed": [
            pictures, "--encoding", "png", "--count", "9", "--loop", "--rate", "20",
        ],
        "/video/small": [video, "--size", "32x48", "--topic", "/video/small"],
    }  # fmt: skip
    command = [*installed("multi-dnn"), "camera", "--wait-for-subscribers", "1", "--camera"]
    processes = [
        subprocess.Popen([*command, topic.split("/")[1], *map(str, words)]) for topic, words in cameras.items()
    ]
    try:
        images, looped, small = (
            client.record(topic, CompressedImage if "compressed" in topic else Image, ALL) for topic in cameras
        )
        client.wait_for(
            lambda: (len(images.messages), len(looped.messages), len(small.messages)) == (6, 9, 6), "all images"
        )
        assert [process.wait(LIMIT_S) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    client.spin(0.1)  # none follows

    for message, picture in zip(images.messages, PICTURES, strict=True):
        assert (message.encoding, message.header.frame_id) == ("bgr8", "images")
        np.testing.assert_array_equal(pixels_of(message), picture)
    assert images.stamps == sorted(set(images.stamps))
    for message, picture in zip(looped.messages, [*PICTURES, *PICTURES[:3]], strict=True):
        assert "png" in message.format
        decoded = cv2.imdecode(np.frombuffer(message.data, np.uint8), cv2.IMREAD_COLOR)
        np.testing.assert_array_equal(decoded[..., ::-1], picture)
    assert {(message.width, message.height) for message in small.messages} == {(32, 48)}
    assert small.stamps == sorted(set(small.stamps))
