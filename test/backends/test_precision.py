"""fp32, tf32, fp16 and bf16: where they are allowed, what is cast, and what happens if a stage cannot be cast."""

from __future__ import annotations

import logging

import pytest
import torch
from small_builtin import small_builtin

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.precision import (
    PRECISIONS,
    InPrecision,
    cast_stage,
)
from multi_dnn_ros.backends.registry import allowed_precisions
from multi_dnn_ros.models.cut import GraphStage, cut_module
from multi_dnn_ros.serving.choices import ConfigError, choose_backend

CPU = torch.device("cpu")


def through(stages: tuple, inputs: Tensors) -> Tensors:
    with torch.inference_mode():
        for stage in stages:
            inputs = stage(inputs)
        return inputs


@pytest.mark.parametrize(
    ("device", "backend", "capability", "expected"),
    [
        ("cpu", "eager", None, "auto fp32 bf16"),
        ("cpu", "onnxruntime", None, "auto fp32 int8"),
        ("cuda", "cuda_graph", (9, 0), "auto fp32 tf32 fp16 bf16"),
        ("cuda", "inductor", (8, 7), "auto fp32 tf32 fp16 bf16"),
        ("cuda", "cuda_graph", (7, 2), "auto fp32 fp16"),
        ("cuda", "eager", (9, 0), "auto fp16 bf16"),
        ("cuda", "eager", (7, 5), "auto fp16"),
    ],
)
def test_allowed_precisions_by_device_and_backend(
    device: str, backend: str, capability: tuple, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multi_dnn_ros.backends.registry.has_int8_products", lambda: True)
    assert " ".join(allowed_precisions(device, backend, capability)) == expected


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_a_precision_that_a_cpu_does_not_have_is_rejected(precision: str) -> None:
    message = rf"parameter dnn.lane.precision is '{precision}'; allowed .* on cpu: auto, fp32"
    with pytest.raises(ConfigError, match=message):
        choose_backend("auto", CPU, precision, dnn="lane")


@pytest.fixture(scope="module")
def pedestrian() -> tuple[torch.nn.Module, Tensors, list[GraphStage]]:
    """A built-in DNN, example inputs and its stages: small ones, because bf16 takes some CPUs thirty times as long."""
    module, example = small_builtin("pedestrian_small")
    return module, example, cut_module(module, example, 3, fold_batch_norm=True)


@pytest.mark.parametrize("backend", ["eager"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_built_in_dnns_have_float32_results_within_the_tolerance(
    backend: str,
    precision: str,
    pedestrian: tuple[torch.nn.Module, Tensors, list[GraphStage]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    module, example, stages = pedestrian
    prepared = choose_backend(backend, CPU, precision, dnn="pedestrian").prepare(stages, example, CPU)
    assert "stays" not in caplog.text
    inputs = noise_like(example)
    with torch.inference_mode():
        expected = module(*inputs)
    (output,) = through(prepared, inputs)
    check_agreement((output,), (expected,), PRECISIONS[precision].tolerance(CPU))


class Overflows(torch.nn.Module):
    """Intermediate values overflow in float16, but not in float32 and bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(1e6))

    def forward(self, carried: Tensors) -> Tensors:
        return (carried[0] * self.scale / 1e6,)


def test_only_the_stage_that_overflows_stays_float32(caplog: pytest.LogCaptureFixture) -> None:
    stages = [torch.nn.Identity(), Overflows(), torch.nn.Identity()]
    prepared = InPrecision(PRECISIONS["fp16"], Eager(), "object").prepare(stages, (torch.zeros(8),), CPU)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith(
        "job 2 of object stays float32, because fp16 fails: result 0: the values that are not finite"
    )
    value = torch.linspace(-2, 2, 8)
    (output,) = through(prepared, (value,))
    assert output.dtype is torch.float32
    torch.testing.assert_close(output, value, rtol=1e-2, atol=1e-2)


class MakesFloat32(torch.nn.Module):
    """Creates a tensor, whose dtype is recorded by the tracer, and flattens an image."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3)
        self.linear = torch.nn.Linear(4 * 6 * 6, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = self.convolution(image)
        mask = (features > 0).to(torch.float32)
        return self.linear((features * mask).flatten(1))


def test_dtypes_in_the_graph_are_cast_and_views_of_channels_last_tensors_work() -> None:
    torch.manual_seed(0)
    example = (torch.rand(1, 3, 8, 8),)
    (stage,) = cut_module(MakesFloat32().eval(), example, 1)
    cast = cast_stage(stage, torch.bfloat16, channels_last=True)
    with torch.inference_mode():
        (result,) = cast(example)
        check_agreement((result.float(),), stage(example), 8e-2)
    assert result.dtype is torch.bfloat16
    weight = next(p for p in cast.parameters() if p.ndim == 4)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert next(p for p in stage.parameters() if p.ndim == 4).is_contiguous()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.tensor([1.0, 100.2]), "off by 0.2 on a scale of 100"),
        (torch.tensor([1.0, float("nan")]), "not finite"),
        (torch.tensor([1.0]), "instead of"),
        (torch.tensor([1.0, 100.0], dtype=torch.float64), "instead of"),
    ],
)
def test_the_first_difference_is_named(result: torch.Tensor, message: str) -> None:
    expected = (torch.tensor([1.0, 100.0]),)
    check_agreement((torch.tensor([1.005, 100.005]),), expected, 1e-4)
    with pytest.raises(ValueError, match=message):
        check_agreement((result,), expected, 1e-3)
    with pytest.raises(ValueError, match="2 results instead of 1"):
        check_agreement((result, result), expected, 1e-3)


def test_values_that_are_not_finite_must_be_equal() -> None:
    special = torch.tensor([float("inf"), float("nan"), 1.0])
    check_agreement((special,), (special.clone(),), 1e-4)
    with pytest.raises(ValueError, match="not finite"):
        check_agreement((torch.tensor([float("-inf"), float("nan"), 1.0]),), (special,), 1e-4)
