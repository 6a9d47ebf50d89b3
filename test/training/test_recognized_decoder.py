"""``multi-dnn evaluate`` and ``retrain`` find the decoder of a model file by the shapes of its outputs."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from tiny_exports import SIZE, TinyMap, TinyOdd, TinyYolo, TinyYolox, export
from torch import nn

from multi_dnn_ros.cli.main import main

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> str:
    """COCO data with a bright box in each image, which is a person."""
    root = tmp_path_factory.mktemp("people")
    rng = np.random.default_rng(0)
    (root / "annotations").mkdir()
    for part in ("train", "val"):
        (root / part).mkdir()
        images, boxes = [], []
        for number in range(4):
            image = rng.integers(0, 90, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
            image[10:40, 20:50] = 250
            cv2.imwrite(str(root / part / f"{number}.png"), image)
            images.append({"id": number, "file_name": f"{number}.png", "width": SIZE[0], "height": SIZE[1]})
            boxes.append({"id": number + 1, "image_id": number, "category_id": 1, "bbox": [20, 10, 30, 30],
                          "area": 900, "iscrowd": 0})  # fmt: skip
        content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "person"}]}
        (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    return f"coco:{root}"


@pytest.fixture
def lines(tmp_path: Path) -> str:
    """Lane data: a vertical line in each image."""
    for offset, part in enumerate(("train", "val")):
        for kind in ("images", "masks"):
            (tmp_path / "lines" / part / kind).mkdir(parents=True)
        for number in range(3):
            mask = np.zeros((SIZE[1], SIZE[0]), np.uint8)
            left = 20 + 40 * offset + 3 * number
            mask[20:, left : left + 4] = 255
            cv2.imwrite(str(tmp_path / "lines" / part / "masks" / f"{number}.png"), mask)
            cv2.imwrite(str(tmp_path / "lines" / part / "images" / f"{number}.jpg"), mask // 2)
    return f"lanes:{tmp_path / 'lines'}"


def scores(model: Path, data: str, report: Path, *more: str) -> dict[str, float]:
    command = ["evaluate", str(model), "--data", data, "--device", "cpu", *more]
    assert main([*command, "--report", str(report)]) == 0
    (row,) = json.loads((report / "report.json").read_text())["networks"]
    return row["scores"][data]


@pytest.mark.parametrize(("network", "decoder"), [(TinyYolo(1), "yolo"), (TinyYolox(1), "yolox")])
def test_a_detector_scores_the_same_as_with_its_decoder_named(
    network: nn.Module, decoder: str, people: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = export(network, tmp_path / "people.onnx")
    labels = ["--labels", "person"]
    found = scores(file, people, tmp_path / "found", *labels)
    assert f"people.onnx: outputs {'(1, 5, 126)' if decoder == 'yolo' else '(1, 126, 6)'} are read as '{decoder}'" in (
        capsys.readouterr().err
    )
    assert found == scores(file, people, tmp_path / "named", *labels, "--decoder", decoder)
    assert "are read as" not in capsys.readouterr().err


def test_a_map_is_a_lane_network_and_a_row_a_classifier(
    lines: str, colours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores(export(TinyMap(), tmp_path / "lane.onnx"), lines, tmp_path / "lane")
    assert "are read as 'lane'" in capsys.readouterr().err
    row = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()
    file = tmp_path / "row.pt2"
    torch.export.save(torch.export.export(row, (torch.zeros(1, 3, 16, 16),)), file)
    scores(file, f"classes:{colours}", tmp_path / "row")
    assert "output (1, 2) is read as the scores of 2 classes" in capsys.readouterr().err


def test_a_teacher_and_a_student_need_no_decoder(
    lines: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("teacher", "student"):
        example = (torch.zeros(1, 3, SIZE[1], SIZE[0]),)
        torch.export.save(torch.export.export(TinyMap().eval(), example), tmp_path / f"{name}.pt2")
    command = ["retrain", str(tmp_path / "student.pt2"), "--teacher", str(tmp_path / "teacher.pt2"), "--data", lines,
               "--output", str(tmp_path / "out.pt2"), "--epochs", "1", "--device", "cpu"]  # fmt: skip
    assert main(command) == 0
    error = capsys.readouterr().err
    for name in ("teacher", "student"):
        assert f"{name}.pt2: outputs (1, 1, 32, 48) are read as 'lane'" in error
    assert (tmp_path / "out.pt2").is_file()


def test_outputs_without_a_decoder_are_reported_with_the_nearest_decoders(
    people: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = export(TinyOdd(), tmp_path / "odd.onnx")
    assert main(["evaluate", str(file), "--data", people, "--device", "cpu"]) == 1
    error = capsys.readouterr().err
    assert "no decoder reads outputs (1, 4, 5, 6, 7); nearest: " in error
    assert "name one of the decoders: classification, " in error
