"""`multi-dnn inspect` on generated exports, and the parameter files that it prints or that are in config/."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from tiny_exports import TinyMap, TinyOdd, TinyYolo, TinyYolox, export

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.models.load import load_dnn
from multi_dnn_ros.serving.settings_check import check_settings
from multi_dnn_ros.settings.params_file import read_params_file

ROOT = Path(__file__).resolve().parents[2]


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    """The JSON, after a check that each problem is also on stderr."""
    assert main(["inspect", *arguments, "--json"]) == code
    printed = capsys.readouterr()
    content = json.loads(printed.out)
    assert len(printed.err.splitlines()) == len(content["problems"])
    return content


@pytest.mark.parametrize(
    ("network", "decoder", "kind", "role", "count"),
    [
        (TinyYolo(80), "yolo", "detections", "object", 80),
        (TinyYolox(3), "yolox", "detections", "object", 3),
    ],
)
def test_what_an_export_is_and_the_parameters_that_serve_it(
    network: torch.nn.Module, decoder: str, kind: str, role: str, count: int, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found = inspected(capsys, str(export(network, tmp_path / "net.onnx")))
    assert (found["decoder"], found["result_kind"], found["opsets"]) == (decoder, kind, {"": 17})
    assert len(found["labels"]) == count
    assert found["input_size"] == [96, 64]
    assert found["inputs"][0].endswith("(1, 3, 64, 96) float32")
    assert found["operators"]["Conv"] == 1
    layer = next(module for module in network.modules() if isinstance(module, torch.nn.Conv2d))
    assert found["parameters"] == sum(parameter.numel() for parameter in network.parameters())
    assert found["macs"] == layer.weight.numel() * (64 // layer.stride[0]) * (96 // layer.stride[0])

    params = tmp_path / "params.yaml"
    params.write_text(found["yaml"], encoding="utf-8")
    ((name, config),) = read_params_file(params).dnns.items()
    dnn = load_dnn(name, config)
    assert (name, dnn.decoder.name, list(dnn.labels)) == (role, decoder, found["labels"])


def test_a_map_may_be_depths_so_its_decoder_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(export(TinyMap(), tmp_path / "net.onnx"))
    (problem,) = inspected(capsys, file, code=1)["problems"]
    assert "are read as 'lane': a map per class, but the shapes leave a doubt; name the decoder" in problem
    assert inspected(capsys, file, "--decoder", "lane")["result_kind"] == "lanes"


def test_what_the_node_cannot_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The problems are named on both outputs, together with what was found out before."""
    file = export(TinyOdd(), tmp_path / "odd.onnx")
    image = tmp_path / "road.png"
    cv2.imwrite(str(image), np.zeros((20, 20, 3), np.uint8))
    found = inspected(capsys, str(file), "--image", str(image), code=1)
    assert "yaml" not in found
    assert "(1, 4, 5, 6, 7)" in found["outputs"][0]
    assert "nearest: " in found["problems"][0]
    assert "picture" not in found
    file = export(TinyYolo(3), tmp_path / "net.onnx")
    found = inspected(capsys, str(file), "--labels", "car", "truck", code=1)
    assert "3 classes in the outputs, but 2 class names" in found["problems"][0]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["sofa"], 1, "argument MODEL is 'sofa'; allowed: builtin:"),
        (["none.onnx"], 1, "none.onnx"),
        (["bad.onnx"], 1, "cannot be read as ONNX"),
        (["builtin:object", "--output", "a.png"], 2, "--image"),
        (["builtin:object", "--image", "none.jpg"], 1, "none.jpg"),
        (["builtin:object", "--image", "a.jpg", "--output", "a.txt"], 2, "expected a name that ends in .png"),
        (["builtin:object", "--image", "a.jpg", "--output", "./a.jpg"], 2, "a.jpg is the file of --image"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07 not a model")
    (tmp_path / "a.jpg").touch()
    assert main(["inspect", *arguments]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_the_coco_file_is_complete_but_for_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything except the download is checked: file names, class names, roles."""
    config = read_params_file(ROOT / "config" / "coco.yaml").model_copy(update={"device": "cpu"})
    monkeypatch.setattr("multi_dnn_ros.serving.settings_check.load_dnn", lambda *_, **options: None)
    check_settings(config)
    for name, settings in config.dnns.items():
        dnn = load_dnn(name, settings.model_copy(update={"weights": "random"}))
        assert {dnn.labels[number] for number in dnn.decoder.kept} == set(settings.keep)
