"""Precision int8: calibrated on images and close to float32 on others, or float32 with the reason in the log."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from multi_dnn_ros.backends import Tensors, cpu_features
from multi_dnn_ros.backends.cpu_features import has_int8_products
from multi_dnn_ros.backends.onnxruntime_backend import OnnxRuntime
from multi_dnn_ros.backends.onnxruntime_sessions import SessionStage
from multi_dnn_ros.backends.quantization import check_quantized
from multi_dnn_ros.backends.registry import BackendRequest
from multi_dnn_ros.cli.main import main
from multi_dnn_ros.models.onnx_export import export
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.choices import ConfigError
from multi_dnn_ros.serving.sample_images import sample_files, sample_images
from multi_dnn_ros.serving.settings_check import check_settings
from multi_dnn_ros.settings.flat_parameters import to_config

CPU = torch.device("cpu")
IMAGE = (torch.zeros(1, 3, 32, 48),)
needs_int8 = pytest.mark.skipif(not has_int8_products(), reason="the CPU has no 8-bit dot product")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "multi_dnn_ros" / "int8"


class Residual(nn.Module):
    """Convolutions, an addition, pooling, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.last = nn.Linear(16, 7)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = self.first(image).relu()
        image = torch.relu(self.second(image) + image)
        return self.last(image.mean((2, 3)))


class Cancels(Residual):
    """Has small differences on a large offset, which are lost in 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Conv2d(16, 16, 1)
        with torch.no_grad():
            self.first.bias.fill_(300.0)  # type: ignore[union-attr]
            self.second.weight.sub_(self.second.weight.mean((1, 2, 3), keepdim=True))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = self.third(self.second(self.first(image).relu()).relu())
        return self.last(image[:, :, 3:-3, 3:-3].mean((2, 3)))


class OddHead(nn.Module):
    """An output with a large offset and small differences, which are lost in int8; the other layers work in int8."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU())
        self.head = nn.Conv2d(16, 4, 1)
        with torch.no_grad():
            self.head.bias[0] = 300.0  # type: ignore[index]

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.head(self.body(image))
        return rows[:, :1], rows[:, 1:]


def seeded(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def pictures(count: int = 16) -> list[Tensors]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.rand(1, 3, 32, 48, generator=generator) * (0.5 + index / count),) for index in range(count)]


def int8(module: nn.Module, jobs: int = 1, progress: list[str] | None = None) -> tuple[SessionStage, ...]:
    report = progress.append if progress is not None else lambda text: None
    request = BackendRequest(CPU, 1e-2, dnn="lane", precision="int8", calibration=pictures, progress=report)
    backend = OnnxRuntime(replace(request, single_launch=True))
    return backend.prepare_graph(export(module, IMAGE), jobs)  # type: ignore[return-value]


def operators(stage: SessionStage) -> str:
    """Operator types of the optimized model of a stage."""
    return " ".join(sorted(stage.operators))


def run(stages: tuple[SessionStage, ...], carried: Tensors) -> Tensors:
    for stage in stages:
        carried = stage(carried)
    return carried


@needs_int8
@pytest.mark.parametrize("jobs", [1, 3])
def test_int8_uses_integer_operators_and_is_close_to_float32(jobs: int) -> None:
    module = seeded(Residual)
    stages = int8(module, jobs)
    whole = stages[0].single_launch or stages[0]
    assert "QLinearConv" in operators(whole)
    assert len(stages) == jobs
    image = (torch.rand(1, 3, 32, 48),)
    with torch.inference_mode():
        (expected,) = (module(*image),)
        for (found,) in (run(stages, image), whole(image)):
            assert found.dtype == torch.float32
            assert not torch.equal(found, expected)
            assert float((found - expected).abs().max()) < 0.1 * float(expected.std())


@needs_int8
def test_the_model_is_read_from_the_cache_unless_the_weights_changed(cache: Path) -> None:
    lines: list[str] = []
    first = int8(seeded(Residual), progress=lines)
    assert lines == [f"lane: calibrating int8 on 12 images; the result is kept in {cache}"]
    again = int8(seeded(Residual), progress=lines)
    assert len(lines) == len(list(cache.iterdir())) == 1
    assert torch.equal(run(first, pictures(1)[0])[0], run(again, pictures(1)[0])[0])
    other = seeded(Residual)
    with torch.no_grad():
        other.last.weight.mul_(2.0)  # type: ignore[union-attr, operator]
    int8(other, progress=lines)
    assert len(lines) == len(list(cache.iterdir())) == 2


@needs_int8
def test_heads_with_too_large_an_error_stay_float32(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        (stage,) = int8(seeded(OddHead))
    assert "the last layers before the outputs stay float32; with all layers in int8, output 0 is off by" in caplog.text
    assert {"QLinearConv", "Conv"} <= {name.removeprefix("Fused") for name in stage.operators}


@needs_int8
def test_a_dnn_with_too_large_an_error_stays_float32_and_the_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    module = seeded(Cancels)
    stages = int8(module)
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("lane stays float32, because int8 fails: output 0 is off by")
    assert "allowed: 0.2 of that" in line
    assert "QLinearConv" not in operators(stages[0])
    image = (torch.rand(1, 3, 32, 48),)
    with torch.inference_mode():
        torch.testing.assert_close(run(stages, image)[0], module(*image), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("found", "wanted", "message"),
    [
        ([0.0, 1.3], [0.0, 1.0], "output 0 is off by 0.212 .* with a standard deviation of 0.5, allowed: 0.2 of"),
        ([0.0, float("nan")], [0.0, 1.0], "output 0 holds NaN"),
        ([0.0, 1.0], [0, 1], "output 0 has another shape or type"),
        ([0, 1], [1, 1], "output 0 differs in 50.0% of its values, allowed: 10%"),
    ],
)
def test_the_comparison_names_the_output_and_the_tolerance(found: list, wanted: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_quantized([(np.array(found),)], [(np.array(wanted),)])
    check_quantized([(np.array(wanted),)], [(np.array(wanted),)])


@needs_int8
def test_the_built_in_lane_dnn_from_its_parameters() -> None:
    lines: list[str] = []
    flat = {"device": "cpu", "dnns": ["lane"], "dnn.lane.model": "builtin:lane_small", "dnn.lane.precision": "int8"}
    (task,) = build(to_config(flat), lines.append).tasks
    (plain,) = build(to_config({**flat, "dnn.lane.precision": "fp32"})).tasks
    assert any(line.startswith("lane: calibrating int8 on 24 images") for line in lines)
    image = sample_images("")[3][1]
    results = [each.decode(each.single_launch[1](each.preprocess(image)), (360, 480)) for each in (task, plain)]
    masks = [np.asarray(result.mask) > 0 for result in results]
    assert (masks[0] & masks[1]).sum() > 0.9 * (masks[0] | masks[1]).sum() > 0


def problems(**of_dnn: str) -> str:
    flat = {"device": "cpu", "dnns": ["object"], **{f"dnn.object.{name}": value for name, value in of_dnn.items()}}
    try:
        check_settings(to_config(flat))
    except ConfigError as error:
        return str(error)
    return ""


@needs_int8
def test_folders_of_calibration_images_are_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    assert problems(precision="int8") == ""
    assert problems(precision="int8", calibration_images=str(tmp_path / "none")) == (
        f"parameter dnn.object.calibration_images is '{tmp_path / 'none'}': {tmp_path / 'none'}: no such folder; "
        "expected: a folder with at least 8 image(s)"
    )
    (tmp_path / "one.png").write_bytes(b"")
    assert f"{tmp_path}: 1 image(s)" in problems(precision="int8", calibration_images=str(tmp_path))


@needs_int8
def test_an_image_that_cannot_be_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for index in range(8):
        (tmp_path / f"{index}.png").write_bytes(b"no picture")
    flat = {"device": "cpu", "dnns": ["lane"], "dnn.lane.model": "builtin:lane_small", "dnn.lane.precision": "int8"}
    with pytest.raises(ConfigError, match=r"parameter dnn.lane.calibration_images is .*0\.png: not a readable image"):
        build(to_config({**flat, "dnn.lane.calibration_images": str(tmp_path)}))


def test_calibration_images_are_evenly_spaced(tmp_path: Path) -> None:
    for index in range(100):
        (tmp_path / f"{index:03}.png").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    taken = [int(file.stem) for file in sample_files(str(tmp_path))]
    assert len(taken) == 32
    assert (taken[0], set(np.diff(taken))) == (0, {3, 4})


@pytest.mark.parametrize("flags", ["flags\t\t: fpu sse4_2 avx2 avx512f", "Features\t: fp asimd", ""])
def test_int8_is_rejected_on_a_cpu_without_8_bit_dot_products(
    flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\n")
    monkeypatch.setattr(cpu_features, "_CPUINFO", tmp_path / "cpuinfo")
    cpu_features.cpu_flags.cache_clear()
    try:
        assert problems(precision="int8") == (
            "parameter dnn.object.precision is 'int8'; allowed with backend onnxruntime on cpu: auto, fp32; int8 "
            "needs 8-bit dot products (AVX512-VNNI, AVX-VNNI; asimddp on aarch64), which this CPU lacks"
        )
        assert problems(precision="fp32") == ""
    finally:
        monkeypatch.undo()
        cpu_features.cpu_flags.cache_clear()


def test_other_backends_and_verbs_reject_int8(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert problems(precision="int8", backend="eager") == (
        "parameter dnn.object.precision is 'int8'; allowed with backend eager on cpu: auto, fp32, bf16"
    )
    command = ["decompose", "builtin:lane", "--ranks", "measured", "--precision", "int8", "--device", "cpu"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--output", str(tmp_path / "lane.safetensors")])
    assert ended.value.code == 2
    assert "--precision: invalid choice: 'int8'" in capsys.readouterr().err
