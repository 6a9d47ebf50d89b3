"""Parameter `check_images`: what a DNN finds in images, as it is served, is compared with what its original finds."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from multi_dnn_ros.backends.cpu_features import has_int8_products
from multi_dnn_ros.engine.task import DnnTask
from multi_dnn_ros.models.dnn import Dnn
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.choices import ConfigError
from multi_dnn_ros.serving.settings_check import check_settings
from multi_dnn_ros.serving.tasks import Pipeline, make_onnx_task
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.schema import DnnConfig
from multi_dnn_ros.training.scenes import SceneGenerator


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a few generated images of roads."""
    folder = tmp_path_factory.mktemp("frames")
    generator = SceneGenerator(320, 240, 3)
    for number in range(6):
        cv2.imwrite(str(folder / f"{number}.png"), generator.scene(number).image[..., ::-1])
    return str(folder)


def built(name: str, frames: str, lines: list[str] | None = None, **more: Any) -> Pipeline:
    settings = {"model": f"builtin:{name}", "check_images": frames, "backend": "eager", **more}
    parameters = {"device": "cpu", "dnns": [name], f"dnn.{name}.role": name.partition("_")[0]}
    return build(to_config({**parameters, **{f"dnn.{name}.{key}": value for key, value in settings.items()}}),
                 (lines if lines is not None else []).append)  # fmt: skip


def test_a_dnn_agrees_with_itself_in_float32(frames: str, caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    with caplog.at_level(logging.INFO):
        built("lane", frames, lines, check_agreement=1.0)
    assert f"comparing the results of lane on {frames}" in lines
    (message,) = [record.getMessage() for record in caplog.records if "agreement" in record.getMessage()]
    assert message.startswith("dnn.lane with precision auto, compared with builtin:lane in float32 on 6 image(s) of ")
    assert ": agreement 1.000 (" in message


def test_a_decomposed_dnn_is_compared_with_its_original(frames: str, caplog: pytest.LogCaptureFixture) -> None:
    options = {"score_threshold": 0.4}
    with pytest.raises(ConfigError, match=r"agreement 0\.\d+ .*; required: 1 .*check_agreement"):
        built("object_small", frames, check_agreement=1.0, **options)
    with caplog.at_level(logging.INFO):
        built("object_small", frames, check_agreement=1.0, check_against="builtin:object_small", **options)
    assert ": agreement 1.000 (" in caplog.text


def test_the_original_of_a_dnn_that_runs_by_pytorch_is_not_exported(frames: str, tmp_path: Path) -> None:
    file = tmp_path / "original.pt2"  # ONNX has no such pooling
    pooling = torch.nn.Sequential(torch.nn.Conv2d(3, 1, 1), torch.nn.AdaptiveAvgPool2d((48, 48))).eval()
    torch.export.save(torch.export.export(pooling, (torch.zeros(1, 3, 64, 64),)), file)
    built("lane", frames, check_against=str(file), labels=["lane"], check_agreement=0.0)
    with pytest.raises(ConfigError, match=r"check_against.*cannot be exported to ONNX"):
        built("lane", frames, check_against=str(file), labels=["lane"], check_agreement=0.0, backend="onnxruntime")


@pytest.mark.skipif(not has_int8_products(), reason="needs a CPU with 8-bit dot products")
def test_a_bad_calibration_is_found(frames: str, tmp_path: Path) -> None:
    dice = np.random.default_rng(0)
    for number in range(8):  # a lens cap: the ranges of the layers do not fit any road
        cv2.imwrite(str(tmp_path / f"{number}.png"), dice.integers(0, 4, (240, 320, 3), dtype=np.uint8))
    int8 = {"precision": "int8", "backend": "onnxruntime", "calibration_images": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"with precision int8, .*; required: 0\.99 .*precision auto"):
        built("object", frames, check_agreement=0.99, score_threshold=0.4, **int8)


def test_a_result_that_is_not_valid_is_a_disagreement(frames: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some precisions overflow only on real images, which no other check sees."""

    def overflow(dnn: Dnn, settings: DnnConfig, *rest: Any) -> DnnTask:
        task = make_onnx_task(dnn, settings, *rest)
        last = task.stages[-1]
        nan = lambda carried: tuple(np.full_like(array, np.nan) for array in last(carried))  # noqa: E731
        return replace(task, stages=(*task.stages[:-1], nan), single_launch={})

    monkeypatch.setattr("multi_dnn_ros.serving.build.make_onnx_task", overflow)
    with pytest.raises(ConfigError, match=r"no valid result for .*0\.png"):
        built("lane", frames, backend="auto")


def test_an_image_that_does_not_contain_the_crop_is_named(frames: str) -> None:
    with pytest.raises(
        ConfigError, match=r"check_images is .*: .*0\.png: .*crop .* ends at 400 x 200; the image has 320"
    ):
        built("object", frames, crop=[80, 20, 320, 180])


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"check_images": "/nothing/here"}, r"check_images is '/nothing/here': /nothing/here: no such folder"),
        ({"check_images": "~nobody here/a"}, r"check_images is '~nobody here/a': ~nobody here/a: the home folder of "),
        ({"check_against": "builtin:lane"}, r"check_against is 'builtin:lane', but check_images is empty"),
        ({"check_against": "builtin:boat"}, r"check_against: .*model is 'builtin:boat'; allowed"),
    ],
)
def test_wrong_parameters_are_named_before_a_dnn_is_loaded(parameters: dict, words: str, frames: str) -> None:
    if "boat" in str(parameters):
        parameters = {**parameters, "check_images": frames}
    flat = {"device": "cpu", "dnns": ["lane"]} | {f"dnn.lane.{key}": value for key, value in parameters.items()}
    (problem,) = check_settings(to_config(flat)).problems
    assert re.search(words, problem), problem


def test_an_original_of_another_kind_is_refused(frames: str) -> None:
    with pytest.raises(ConfigError, match=r"check_against"):
        built("lane", frames, check_against="builtin:object")
