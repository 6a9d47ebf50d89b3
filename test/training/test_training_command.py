"""``python -m multi_dnn_ros.training``: from nothing to a weights file, and errors in one line."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from safetensors import safe_open

from multi_dnn_ros.training import recipes
from multi_dnn_ros.training.__main__ import main


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "DETECTOR_SIZE", (96, 64))
        patch.setattr(recipes, "LANE_SIZE", (96, 64))
        torch.set_num_threads(1)
        yield


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder, where the first command of this module renders the scenes for all."""
    return tmp_path_factory.mktemp("scenes")


def arguments(role: str, folder: Path, scenes: Path) -> list[str]:
    images = ["--scenes", str(scenes), "--count", "8", "--choice", "4", "--workers", "1"]
    run = ["--epochs", "2", "--batch-size", "4", "--device", "cpu", "--quiet", "--resume", str(folder / "last.ckpt")]
    return [role, "--out", str(folder / f"{role}.safetensors"), *images, *run]


Trained = Callable[[str], tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def trained(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Folder with the weights and the checkpoint of a role, trained once, and the result that the command printed."""
    done: dict[str, tuple[Path, dict[str, Any]]] = {}

    def train(role: str) -> tuple[Path, dict[str, Any]]:
        if role not in done:
            folder = tmp_path_factory.mktemp(role)
            with contextlib.redirect_stdout(io.StringIO()) as output:
                assert main(arguments(role, folder, scenes)) == 0
            done[role] = folder, json.loads(output.getvalue().splitlines()[-1])
        return done[role]

    return train


@pytest.mark.parametrize("role", ["lane", "object", "pedestrian"])
def test_a_role_is_trained_and_written(
    role: str, trained: Trained, scenes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, result = trained(role)
    assert result["role"] == role
    with safe_open(folder / f"{role}.safetensors", "pt") as file:
        header = {name: json.loads(value) for name, value in file.metadata().items()}
    assert header["input_size"] == [96, 64]
    assert header["training"]["data"]["train"]["count"] == 8
    assert header["training"]["kept_epoch"] == result["epoch"]
    # Resumes from the last checkpoint, so that nothing is left to train.
    assert main(arguments(role, folder, scenes)) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result


def real_images(folder: Path) -> Path:
    """COCO folder of grey images; the first and the last, which is held out, show a pedestrian."""
    for part in ("train", "val"):
        (folder / part).mkdir(parents=True)
        (folder / "annotations").mkdir(exist_ok=True)
        images = [{"id": k, "file_name": f"{k}.png", "width": 192, "height": 128} for k in (1, 2, 3)]
        for image in images:
            cv2.imwrite(str(folder / part / str(image["file_name"])), np.full((128, 192, 3), 90, np.uint8))
        content = {
            "images": images,
            "categories": [{"id": 1, "name": "pedestrian"}],
            "annotations": [{"image_id": k, "category_id": 1, "bbox": [20, 20, 20, 60]} for k in (1, 3)],
        }
        (folder / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    return folder


def test_training_on_scenes_and_real_images(
    trained: Trained, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training starts from existing weights; the written file describes these weights and the images."""
    initial = trained("pedestrian")[0] / "pedestrian.safetensors"
    more = ["--real", str(real_images(tmp_path / "real")), "--start", str(initial)]
    assert main([*arguments("pedestrian", tmp_path, scenes), *more]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["map50"] == pytest.approx((result["map50_generated"] + result["map50_real"]) / 2)
    with safe_open(tmp_path / "pedestrian.safetensors", "pt") as file:
        data = json.loads(file.metadata()["training"])["data"]
    assert data["real"] == {"images": 2, "choice": 1}
    assert data["start"]["weights"] == "pedestrian.safetensors"
    assert data["start"]["sha256"] == hashlib.sha256(initial.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("option", "message"), [("--start", "there is no such file"), ("--real", "no instances_train")]
)
def test_a_missing_file_is_one_line(
    option: str, message: str, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments("object", tmp_path, scenes), option, str(tmp_path / "nowhere")]) == 1
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_missing_road_data_is_one_line(scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments("lane", tmp_path, scenes), "--road", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == f"{tmp_path / 'nowhere'}: no lane_masks/*.png"


def test_another_schedule_does_not_touch_the_checkpoint(
    trained: Trained, scenes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(trained("object")[0] / "last.ckpt", tmp_path)
    before = (tmp_path / "last.ckpt").read_bytes()
    same = arguments("object", tmp_path, scenes)
    assert main([*same, "--epochs", "3"]) == 1
    assert "schedule.epochs is 2 there, 3 now" in capsys.readouterr().err
    assert main([*same, "--batch-size", "2"]) == 1
    assert "batch_size is 4 there, 2 now" in capsys.readouterr().err
    assert (tmp_path / "last.ckpt").read_bytes() == before


@pytest.mark.parametrize(("device", "message"), [("cuda:99", "PyTorch sees"), ("gpu", "expected cpu, cuda or")])
@pytest.mark.parametrize("verb", ["lane", "curve"])
def test_a_missing_device_is_reported_first(
    verb: str, device: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    options = {"lane": ["--scenes"], "curve": ["torchvision:vgg16", "--data", "cifar10:x", "--folder"]}
    assert main([verb, *options[verb], str(work), "--out", str(tmp_path / "out.safetensors"), "--device", device]) == 1
    assert f"--device {device}: {message}" in capsys.readouterr().err
    assert not work.exists()


def test_a_missing_road_is_reported_before_scoring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--count", "8", "--road", str(tmp_path), "--out", str(tmp_path / "out.json")]) == 1
    assert capsys.readouterr().err == f"{tmp_path}: no lane_masks/*.png\n"
