"""ONNX graphs as sessions: the results of PyTorch for any cut, shared weights and memory, threads, batches, errors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from small_builtin import small_builtin
from torch import nn
from torch.utils import _pytree as pytree
from torchvision.models.mobilenetv3 import _mobilenet_v3_conf

from multi_dnn_ros.backends import Shared
from multi_dnn_ros.backends.onnxruntime_backend import OnnxRuntime
from multi_dnn_ros.backends.onnxruntime_sessions import SessionStage, make_sessions
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.models.errors import ExportError
from multi_dnn_ros.models.onnx_cut import OptimizedGraph, node_times_ms
from multi_dnn_ros.models.onnx_export import export
from multi_dnn_ros.models.onnx_network import OnnxNetwork, run_network
from multi_dnn_ros.serving.choices import ConfigError, backend_name, choose_backend

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
IMAGE = (torch.zeros(1, 3, 32, 48),)


class Residual(nn.Module):
    """Batch norms, a branch that is carried over cuts, pooling and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 1))
        self.last = nn.Linear(16, 7)

    def forward(self, image: torch.Tensor) -> Any:
        image = self.first(image)
        image = torch.relu(self.second(image) + image)
        return self.last(nn.functional.adaptive_avg_pool2d(image, 1).flatten(1))


class Detector(Residual):
    """Heads as in torchvision's SSD; returns a dict, with integers and booleans."""

    def forward(self, image: torch.Tensor) -> Any:
        image = nn.functional.hardswish(self.first(image))
        boxes = [image, nn.functional.max_pool2d(image, 2)]
        rows = [each.view(1, 4, -1, *each.shape[2:]).permute(0, 3, 4, 1, 2).reshape(1, -1, 4) for each in boxes]
        together = torch.cat(rows, 1)
        return {"boxes": together, "best": together.argmax(2), "sure": together.sigmoid() > 0.5}


class Transformer(Residual):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, activation="gelu")

    def forward(self, image: torch.Tensor) -> Any:
        tokens = self.first(image).flatten(2).transpose(1, 2)
        return self.last(self.layer(tokens)[:, 0])


class PassesOn(nn.Module):
    """One output is the input, another one is a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3, padding=1)
        self.anchors = nn.Parameter(torch.arange(6.0))

    def forward(self, image: torch.Tensor) -> Any:
        features = self.layer(image).relu()
        return self.layer(features), image, self.anchors * 2, features


@functools.cache
def seeded(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    module = kind().eval()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean = torch.randn(part.num_features) * 0.1
            part.running_var = torch.rand(part.num_features) + 0.5
    return module


@functools.cache
def network(kind: type[nn.Module]) -> OnnxNetwork:
    return export_network(seeded(kind), IMAGE)


def export_network(module: nn.Module, example: tuple[torch.Tensor, ...]) -> OnnxNetwork:
    def for_images(images: int) -> Any:
        return export(module, tuple(torch.cat([tensor] * images) for tensor in example))

    return OnnxNetwork(export(module, example, compare=True), for_images, lambda: module)


def through(stages: Sequence[Any], image: np.ndarray) -> tuple[Any, ...]:
    carried: tuple[Any, ...] = (image,)
    for stage in stages:
        carried = stage(carried)
    return carried


def noise(shape: Sequence[int] = (1, 3, 32, 48), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check_all(module: nn.Module, found: OnnxNetwork, jobs: int, shape: Sequence[int]) -> tuple[SessionStage, ...]:
    """Check the results of the stages, and of the single session, against PyTorch's."""
    image = noise(shape)
    expected = run_network(module, image)
    stages = make_sessions(found.model, jobs)
    assert (stages[0].single_launch is None) == (len(stages) == 1)
    for chain in [stages] if len(stages) == 1 else [stages, [stages[0].single_launch]]:
        for own, right in zip(through(chain, image), expected, strict=True):
            np.testing.assert_allclose(own, right.numpy(), rtol=1e-3, atol=1e-4)
    return stages


@settings(max_examples=12, deadline=None)
@given(st.sampled_from([Residual, Detector, Transformer, PassesOn]), st.integers(1, 40))
def test_any_number_of_jobs_computes_the_same_as_the_module(kind: type[nn.Module], jobs: int) -> None:
    stages = check_all(seeded(kind), network(kind), jobs, (1, 3, 32, 48))
    assert len(stages) == min(jobs, max(1, len(OptimizedGraph(network(kind).model).nodes)))


def test_built_in_and_torchvision_networks() -> None:
    for model in ("lane", "object_small"):
        module, inputs = small_builtin(model)
        assert len(check_all(module, export_network(module, inputs), 4, inputs[0].shape)) == 4
    torch.manual_seed(0)
    options, channels = _mobilenet_v3_conf("mobilenet_v3_small")  # all kinds of its blocks are among the first
    module = torchvision.models.MobileNetV3(options[:4], channels, num_classes=5).eval()
    check_all(module, export_network(module, (torch.zeros(1, 3, 64, 64),)), 4, (1, 3, 64, 64))


def test_jobs_have_about_equal_costs_estimated_or_measured() -> None:
    module, inputs = small_builtin("object")
    graph = OptimizedGraph(export_network(module, inputs).model)
    for costs in (None, [ms / 1e3 for ms in node_times_ms(graph)]):
        parts = graph.parts(3, costs)
        total = sum(part.cost_s for part in parts)
        assert total == pytest.approx(sum(costs or graph.costs_s))
        assert max(part.cost_s for part in parts) < max(0.5 * total, 2 * max(costs or graph.costs_s))
    scaled = graph.parts(2, [1.0])  # times of a graph that was optimized otherwise
    assert sum(part.cost_s for part in scaled) == pytest.approx(1.0)


def test_macs_and_parameters_of_a_graph() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.Conv2d(4, 4, 1, groups=2, bias=False)).eval()
    graph = OptimizedGraph(export_network(layers, IMAGE).model, standard_operators=True)
    assert graph.macs == 16 * 24 * (4 * 27 + 4 * 2)
    assert graph.parameters == 4 * 27 + 4 * 2


def test_results_are_not_overwritten_by_the_next_frame() -> None:
    """A DNN's thread may decode the results of one frame while a worker runs the next."""
    stages = make_sessions(network(Residual).model, 2)
    (result,) = through(stages, noise())
    before = result.copy()
    for seed in range(5):
        through(stages, noise(seed=seed))
    np.testing.assert_array_equal(result, before)


def test_stages_whole_network_and_batches_share_weights() -> None:
    """And a batch has the results of its images alone."""
    shared, own = Shared(), network(Residual)
    alone = make_sessions(own.model, 3, shared=shared)
    kept = len(shared.weights)
    together = make_sessions(own.for_images(2), 3, shared=shared)
    assert len(shared.weights) == kept
    images = noise((2, 3, 32, 48))
    (results,) = through(together, images)
    for row in range(2):
        np.testing.assert_allclose(
            results[row : row + 1], through(alone, images[row : row + 1])[0], rtol=1e-3, atol=1e-5
        )


def test_after_an_error_a_session_runs_the_next_frame() -> None:
    stages = make_sessions(network(Residual).model, 2)
    for chain in (stages, [stages[0].single_launch]):
        with pytest.raises(Exception, match="Unexpected input data type"):
            through(chain, np.zeros((1, 3, 32, 48)))
        assert through(chain, noise())[0].shape == (1, 7)


class Keeps(nn.Module):
    """Keeps state for the next frame."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return image * self.count


class Special(nn.Module):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(image)


class NotANumber(nn.Module):
    """Has other values as ONNX."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image * float("nan") if torch.onnx.is_in_onnx_export() else image


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Keeps, "output 0 differs from PyTorch"),
        (NotANumber, "output 0 differs from PyTorch"),
        (Special, "special_bessel_j0"),
    ],
)
def test_what_cannot_be_exported_is_named(
    kind: type[nn.Module], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ExportError, match=reason):
        export_network(kind().eval(), IMAGE)
    assert capfd.readouterr().out == ""


def test_offline_tools_run_pytorch_modules_by_sessions() -> None:
    stages = OnnxRuntime().prepare(cut_module(seeded(Residual), IMAGE, 3, fold_batch_norm=True), IMAGE, CPU)
    image = torch.from_numpy(noise())
    carried: tuple[Any, ...] = (image,)
    for stage in stages:
        carried = stage(carried)
    with torch.inference_mode():
        torch.testing.assert_close(carried, tuple(pytree.tree_leaves(seeded(Residual)(image))), rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="for a CPU; the device is cuda:0"):
        OnnxRuntime().prepare([seeded(Residual)], IMAGE, GPU)


def test_onnxruntime_is_the_default_on_a_cpu() -> None:
    for precision in ("auto", "fp32"):
        assert type(choose_backend("auto", CPU, precision)) is OnnxRuntime
        assert backend_name("auto", CPU, precision=precision) == "onnxruntime"
    with pytest.raises(ConfigError, match="precision is 'bf16'; allowed with backend onnxruntime on cpu: auto, fp32"):
        choose_backend("auto", CPU, "bf16", dnn="lane")
