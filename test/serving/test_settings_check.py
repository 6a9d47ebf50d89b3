"""All problems of a configuration are reported at once, before any DNN is prepared. test/models has those of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import cv2
import numpy as np
import pytest
import torch

from multi_dnn_ros.backends import Stage
from multi_dnn_ros.backends.onnxruntime_backend import OnnxRuntime
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.choices import ConfigError
from multi_dnn_ros.serving.host import divide_devices
from multi_dnn_ros.serving.settings_check import check_settings
from multi_dnn_ros.settings.flat_parameters import to_config
from multi_dnn_ros.settings.schema import NodeConfig

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def settings(parameters: dict[str, Any] | None = None, **of_dnn: Any) -> NodeConfig:
    """A DNN `x` with these parameters `dnn.x.*`, next to a valid DNN `object`."""
    flat = {"device": "cpu", "dnns": ["object", "x"], "dnn.x.role": "object", "dnn.x.model": "builtin:object"}
    return to_config({**flat, **(parameters or {}), **{f"dnn.x.{name}": value for name, value in of_dnn.items()}})


def problems(config: NodeConfig) -> list[str]:
    with pytest.raises(ConfigError) as error:
        check_settings(config)
    return str(error.value).splitlines()


def folder_of_one(at: Path) -> str:
    cv2.imwrite(str(at / "one.png"), np.zeros((48, 64, 3), np.uint8))
    return str(at)


#: What a user may get wrong: parameters of the DNN, and words of the message. {at}: folder of the test, with one image.
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"model": "builtin:sofa"}, "parameter dnn.x.model is 'builtin:sofa'; allowed: builtin:lane"),
    ({"labels": ["a"]}, "parameter dnn.x.labels has 1 names, but builtin:object has 2"),
    ({"cameras": ["rear"]}, "parameter dnn.x.cameras names 'rear'; allowed: front (parameter cameras)"),
    ({"backend": "cuda_graph"}, "parameter dnn.x.backend is 'cuda_graph', but the device is cpu; allowed: auto"),
    ({"precision": "fp16"}, "dnn.x.precision is 'fp16'; allowed with backend onnxruntime on cpu: auto, fp32"),
    ({"sms": 8}, "dnn.x.sms is 8; only an NVIDIA GPU can be partitioned; the device is cpu"),
    ({"precision": "int8", "calibration_images": "{at}"}, "calibration_images is '{at}': {at}: 1 image(s) (.jpg"),
    ({"precision": "int8", "calibration_images": "/nowhere"}, "'/nowhere': /nowhere: no such folder; expected: a fol"),
    ({"providers": ["cpu", "cuda"]}, "dnn.x.providers names 'cuda', but the device is cpu; allowed there: openvino"),
    ({"providers": ["openvino"], "precision": "int8", "backend": "onnxruntime"}, "allowed with its providers: openvi"),
]


@pytest.mark.parametrize(("values", "words"), MISTAKES, ids=[words[:40] for _, words in MISTAKES])
def test_a_mistake_is_reported_before_a_dnn_is_prepared(
    values: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> NoReturn:
        pytest.fail("a DNN was prepared")

    monkeypatch.setattr("multi_dnn_ros.backends.registry.has_int8_products", lambda: True)
    monkeypatch.setattr("multi_dnn_ros.serving.build.choose_backend", refuse)
    at = folder_of_one(tmp_path)
    values = {name: value.format(at=at) if isinstance(value, str) else value for name, value in values.items()}
    with pytest.raises(ConfigError) as error:
        build(settings(**values))
    (problem,) = str(error.value).splitlines()
    assert words.format(at=at) in problem


def test_all_mistakes_of_all_dnns_are_reported_together() -> None:
    config = settings(
        {"dnn.object.model": "nothing.onnx", "dnn.object.precision": "fp16"},
        labels=["a"], keep=["b"], mean=[1.0], cameras=["rear", "left"], decoder="grid", role="lane",
    )  # fmt: skip
    found = problems(config)
    for words in (
        "nothing.onnx", "object.precision", "'rear'", "'left'", "labels has 1", "mean and std", "x.role",
    ):  # fmt: skip
        assert sum(words in line for line in found) == 1, words
    assert len(found) == 7


@without_gpu
def test_a_device_that_does_not_exist_hides_no_other_problem() -> None:
    missing, model = problems(settings({"device": "cuda:1"}, precision="fp16", model="builtin:sofa"))
    assert "parameter device is 'cuda:1', but PyTorch sees 0 GPUs here; allowed: auto, cpu" in missing
    assert "builtin:sofa" in model  # the precision cannot be checked without a device


def test_valid_settings_have_no_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi_dnn_ros.backends.registry.has_int8_products", lambda: True)
    for values in ({}, {"providers": ["openvino:gpu", "cpu"]}, {"precision": "int8"}, {"sms": 0, "branches": 4}):
        assert set(check_settings(settings(**values))[1]) == {"object", "x"}


def test_each_device_has_its_part_of_the_settings_and_one_process_only_one_device() -> None:
    config = settings(device="cpu:1")
    assert {device: list(part.dnns) for device, part in divide_devices(config).items()} == {
        "cpu": ["object"], "cpu:1": ["x"],
    }  # fmt: skip
    together = config.model_copy(update={"isolation": "none"})
    assert list(divide_devices(together)) == ["cpu"]
    (problem,) = problems(together)
    assert problem.startswith("the DNNs run on cpu, cpu:1 (parameters dnn.<dnn>.device), but one process")


class Full(OnnxRuntime):
    """A backend with memory for one DNN only."""

    dnns = 0

    def prepare_graph(self, *arguments: Any) -> tuple[Stage, ...]:
        Full.dnns += 1
        if Full.dnns > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a capacity of ...")
        return super().prepare_graph(*arguments)


def test_out_of_memory_names_the_dnn_and_the_request_and_fewer_dnns_can_be_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("multi_dnn_ros.serving.build.choose_backend", lambda *args, **kwargs: Full())
    with pytest.raises(ConfigError) as raised:
        build(settings())
    message = str(raised.value)
    assert message.startswith("dnn.x: builtin:object does not fit into the memory of cpu: a request for 1.50 GiB")
    assert "parameter dnns" in message
    assert raised.value.__context__ is None  # its traceback would keep the memory allocated
    Full.dnns = 0
    assert [task.name for task in build(settings({"dnns": ["object"]})).tasks] == ["object"]
