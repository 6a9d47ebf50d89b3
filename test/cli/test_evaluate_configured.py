"""`multi-dnn evaluate --params-file` scores each result of a configured DNN on whole images."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
import yaml
from two_heads import LABELS, SIZE, TwoHeads, exported

from multi_dnn_ros.cli.main import main

OUTPUTS = {
    "outputs": ["objects", "people", "drivable"],
    "output": {
        "objects": {"decoder": "yolo", "raw_outputs": ["0"], "keep": ["car"]},
        "people": {"decoder": "yolo", "raw_outputs": ["0"], "keep": ["person"]},
        "drivable": {"decoder": "drivable", "raw_outputs": ["1"]},
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("model"))


def parameters(folder: Path, model: Path, **more: object) -> Path:
    dnn = {"role": "network", "model": str(model), "labels": LABELS, **more}
    file = folder / "robot.yaml"
    file.write_text(yaml.safe_dump({"/**": {"ros__parameters": {"dnns": ["road"], "dnn": {"road": dnn}}}}))
    return file


def coco(folder: Path, size: tuple[int, int], box: tuple[int, int, int, int], category: str = "car") -> str:
    """One image (H, W) with one red box x, y, width, height."""
    for part in ("train2017", "val2017", "annotations"):
        (folder / part).mkdir(parents=True)
    image = np.zeros((*size, 3), np.uint8)
    x, y, width, height = box
    image[y : y + height, x : x + width, 2] = 255  # BGR
    cv2.imwrite(str(folder / "val2017" / "a.png"), image)
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": size[1], "height": size[0]}],
        "categories": [{"id": 3, "name": "car"}, {"id": 5, "name": "person"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 3 if category == "car" else 5, "bbox": list(box)}],
    }
    (folder / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    return f"coco:{folder}"


def scored(tmp_path: Path, params: Path, data: str, *more: str, code: int = 0) -> dict[str, dict]:
    report = tmp_path / "report"
    arguments = ["--params-file", str(params), "--data", data, "--device", "cpu", "--report", str(report), *more]
    assert main(["evaluate", *arguments]) == code
    return {row["result"]: row for row in json.loads((report / "report.json").read_text())["results"]}


def test_each_result_is_scored_with_its_own_kind(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = coco(tmp_path / "data", (96, 128), (96, 64, 16, 16))
    found = scored(tmp_path, parameters(tmp_path, model, **OUTPUTS), data)
    assert list(found) == ["road/objects", "road/people", "road/drivable"]
    assert found["road/objects"]["scores"]["map50"] == pytest.approx(1.0)
    assert found["road/people"]["reason"].startswith(f"data '{data}': ")  # no true person
    text = capsys.readouterr().out
    assert "map50 1" in text
    assert "none: results of kind 'drivable_area' cannot be scored" in text


@pytest.mark.parametrize("crop", [[0.5, 0.5, 0.5, 0.5], [128, 96, 128, 96]])
def test_boxes_are_those_of_the_whole_image(crop: list[float], tmp_path: Path) -> None:
    data = coco(tmp_path / "data", (192, 256), (224, 160, 16, 16))
    found = scored(tmp_path, parameters(tmp_path, boxes_only(tmp_path), crop=crop), data)
    assert found["road"]["scores"]["map50"] == pytest.approx(1.0)


def boxes_only(folder: Path) -> Path:
    """The network without its second output, as a file that takes any batch."""

    class Boxes(TwoHeads):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return super().forward(image)[0]

    file = folder / "boxes.pt2"
    batch = {"image": {0: torch.export.Dim("batch", min=1, max=8)}}
    images = torch.zeros(2, 3, SIZE[1], SIZE[0])
    torch.export.save(torch.export.export(Boxes().eval(), (images,), dynamic_shapes=batch), file)
    return file


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected either MODEL or --params-file"),
        (["--dnn", "road"], "--dnn names a DNN of --params-file, which is missing"),
        (["--params-file", "FILE", "--served"], "--served is for MODEL"),
        (["--params-file", "FILE", "--dnn", "other"], "--dnn is other; the parameter file has: road"),
        (["--params-file", "FILE", "--data", "road", "--data", "cifar10:."], "'cifar10' has no images of a camera"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], message: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(parameters(tmp_path, model, **OUTPUTS))
    data = [] if "--data" in arguments else ["--data", "road"]
    code = main(["evaluate", *(file if part == "FILE" else part for part in arguments), *data])
    assert code != 0
    assert message in capsys.readouterr().err
