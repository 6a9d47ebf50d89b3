"""Names of units, and units that this machine does not have."""

from __future__ import annotations

import pytest
import torch

from multi_dnn_ros.cli.main import main
from multi_dnn_ros.common.resources import cpu_count
from multi_dnn_ros.partition.units import parse_units


def test_a_unit_name_contains_device_threads_and_provider() -> None:
    units = parse_units("cpu, cpu:8,cuda,cuda:1,openvino:gpu,openvino:cpu,tensorrt")
    assert [(unit.name, unit.device, unit.threads, unit.provider) for unit in units] == [
        ("cpu", "cpu", 0, ""),
        ("cpu:8", "cpu", 8, ""),
        ("cuda:0", "cuda:0", 0, ""),
        ("cuda:1", "cuda:1", 0, ""),
        ("openvino:gpu", "cpu", 1, "openvino:gpu"),
        ("openvino:cpu", "cpu", 0, "openvino:cpu"),
        ("tensorrt", "cuda:0", 0, "tensorrt"),
    ]


@pytest.mark.parametrize("text", ["tpu", "", "cpu:0", "cpu:-1", "cuda:x", "cpu:1,", "openvino:tpu", "cpu/eager"])
def test_an_unknown_unit_is_refused_with_the_allowed_ones(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["partition", "profile", "torchvision:resnet18", "--units", text, "--max-batch", "1"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert f"unit '{text.split(',')[-1]}' is not known" in error
    assert "cuda:<number>" in error


@pytest.mark.parametrize(
    ("unit", "precision", "said"),
    [
        (f"cuda:{torch.cuda.device_count()}", "auto", f"PyTorch sees {torch.cuda.device_count()}"),
        (f"cpu:{cpu_count() + 1}", "auto", f"may use {cpu_count()} cores"),
        ("openvino:gpu", "auto", "the installed ONNX Runtime has the providers"),
        ("cpu:1", "tf32", "--precision is 'tf32'; allowed"),
    ],
)
def test_a_unit_that_the_machine_does_not_have_is_named_before_anything_is_measured(
    unit: str, precision: str, said: str, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    units = f"cpu,{unit}"
    command = ["partition", "profile", "torchvision:resnet18", "--units", units, "--max-batch", "1", "--precision"]
    assert main([*command, precision, "--tables", str(tmp_path)]) == 1
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
