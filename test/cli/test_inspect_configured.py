"""`multi-dnn inspect --params-file`: several results, a crop and tiles of a configuration."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from two_heads import LABELS, exported

from multi_dnn_ros.cli.main import main


def parameters(tmp_path: Path, **more: object) -> Path:
    dnn = {"role": "network", "model": str(exported(tmp_path)), "labels": LABELS, **more}
    file = tmp_path / "robot.yaml"
    file.write_text(yaml.safe_dump({"/**": {"ros__parameters": {"dnns": ["road"], "dnn": {"road": dnn}}}}))
    return file


OUTPUTS = {
    "outputs": ["objects", "drivable"],
    "output": {
        "objects": {"decoder": "yolo", "raw_outputs": ["0"]},
        "drivable": {"decoder": "drivable", "raw_outputs": ["1"]},
    },
}


def picture(file: Path) -> Path:
    """An image of height 96 and width 128: one red cell in the lower right quarter, blue below the middle."""
    image = np.zeros((96, 128, 3), np.uint8)
    image[48:, :, 2] = 255
    image[64:80, 96:112] = (255, 0, 0)
    cv2.imwrite(str(file), image[..., ::-1])
    return file


def test_each_result_is_listed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image, drawn = picture(tmp_path / "in.png"), tmp_path / "out.png"
    arguments = ["--params-file", str(parameters(tmp_path, **OUTPUTS)), "--image", str(image), "--output", str(drawn)]
    assert main(["inspect", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    results = found["results"]
    assert [(name, one["decoder"], one["result_kind"], one["raw_outputs"]) for name, one in results.items()] == [
        ("road/objects", "yolo", "detections", [0]),
        ("road/drivable", "drivable", "drivable_area", [1]),
    ]
    assert found["picture"] == str(drawn)
    before, after = cv2.imread(str(image)).astype(int), cv2.imread(str(drawn)).astype(int)
    gap = np.abs(before - after).max(axis=2)
    assert (gap[56:62] > 10).mean() > 0.5  # the drivable area
    assert main(["inspect", *arguments]) == 0
    text = capsys.readouterr().out
    assert "road/drivable: drivable_area by decoder drivable, labels: " in text
    assert f"picture     {drawn}" in text


def test_a_crop_gives_results_in_the_whole_image(tmp_path: Path) -> None:
    drawn, image = tmp_path / "out.png", picture(tmp_path / "in.png")
    for crop, touched in ([0.5, 0.5, 0.5, 0.5], True), ([0.0, 0.0, 0.5, 0.5], False):
        file = parameters(tmp_path, crop=crop, **OUTPUTS)
        assert main(["inspect", "--params-file", str(file), "--image", str(image), "--output", str(drawn)]) == 0
        gap = np.abs(cv2.imread(str(image)).astype(int) - cv2.imread(str(drawn)).astype(int)).max(axis=2)
        assert (gap[64:80, 94:114].max() > 10) == touched  # the red cell


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dnn", "far"], "--dnn is 'far'; the parameter file has: road"),
        (["net.onnx"], "MODEL and --params-file both name a model; give only one of them"),
        (["--labels", "a"], "--labels is for MODEL"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", *arguments, "--params-file", str(parameters(tmp_path, **OUTPUTS))]) != 0
    assert words in capsys.readouterr().err
