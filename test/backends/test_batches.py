"""Batches: the same results with the same weights, or an error that names the parameter and the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.batches import BatchError, prepare_batches, repeat_inputs, sizes_to_prepare
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.choices import ConfigError, choose_backend
from multi_dnn_ros.settings.flat_parameters import to_config

CPU = torch.device("cpu")
EXAMPLE = (torch.zeros(1, 3, 16, 24),)


class Network(nn.Module):
    """Two convolutions with batch norms; a flat output and an image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
        )
        self.last = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.layers(image)
        return features, self.last(features.mean((2, 3)))


class Joins(Network):
    def forward(self, image: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.layers(image).reshape(1, 8, -1)


class Mixes(Network):
    def forward(self, image: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return self.layers(image - image.mean(0))


def chains(module: nn.Module, *sizes: int, fold: bool = True) -> dict[int, list[nn.Module]]:
    return {size: [*cut_module(module.eval(), repeat_inputs(EXAMPLE, size), 2, fold_batch_norm=fold)] for size in sizes}


def through(stages: tuple, carried: Tensors) -> Tensors:
    with torch.inference_mode():
        for stage in stages:
            carried = stage(carried)
        return carried


def test_batch_sizes_are_all_on_a_cpu_and_powers_of_two_on_a_gpu() -> None:
    gpu = torch.device("cuda")
    assert [sizes_to_prepare(count, CPU) for count in (1, 3)] == [(1,), (1, 2, 3)]
    assert [sizes_to_prepare(count, gpu) for count in (1, 2, 6, 16)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8, 16)]


@pytest.mark.parametrize(
    ("backend", "precision", "tolerance"),
    [("onnxruntime", "auto", 1e-4), ("eager", "auto", 1e-4), ("eager", "bf16", 8e-2)],
)
def test_a_batch_has_the_results_of_its_images_alone_with_the_same_weights(
    backend: str, precision: str, tolerance: float
) -> None:
    module = Network()
    ready = prepare_batches(choose_backend(backend, CPU, precision), chains(module, 1, 2, 3), EXAMPLE, CPU, tolerance)
    images = torch.randn(3, 3, 16, 24)
    for size in (2, 3):
        results = through(ready[size], (images[:size],))
        for row in range(size):
            alone = through(ready[1], (images[row : row + 1],))
            check_agreement(tuple(result[row : row + 1] for result in results), alone, tolerance)
    if backend == "eager":
        pointers = [{p.data_ptr() for stage in ready[size] for p in stage.parameters()} for size in ready]  # type: ignore[attr-defined]
        assert len(pointers[0]) == 6
        assert pointers[0] == pointers[1] == pointers[2]
        assert not [buffer for stages in ready.values() for stage in stages for buffer in stage.buffers()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Joins(), r"output 0 of a batch of 2 images has shape \(1, 8, 616\)"),
        (Mixes(), "image 1 of a batch of 2 has a different result when it runs alone: result 0 is off by"),
    ],
)
def test_a_dnn_that_mixes_the_images_of_a_batch_is_detected(module: nn.Module, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        prepare_batches(choose_backend("eager", CPU), chains(module, 1, 2), EXAMPLE, CPU, 1e-4)


def onnx_of_one_image(path: Path) -> None:
    """A convolution and a reshape to (1, 6, N)."""
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 6, 1024])
    weight = helper.make_tensor("weight", TensorProto.FLOAT, [6, 3, 1, 1], np.ones(18, np.float32))
    shape = helper.make_tensor("shape", TensorProto.INT64, [3], np.array([1, 6, -1]))
    nodes = [
        helper.make_node("Conv", ["image", "weight"], ["features"]),
        helper.make_node("Reshape", ["features", "shape"], ["output"]),
    ]
    graph = helper.make_graph(nodes, "one", [image], [output], [weight, shape])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.convolution(image).flatten(2)


@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_a_file_exported_for_one_image_is_rejected_by_name(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"one.{suffix}"
    if suffix == "onnx":
        onnx_of_one_image(file)
    else:
        torch.export.save(torch.export.export(Cells().eval(), (torch.zeros(1, 3, 32, 32),)), file)
    flat = {"device": "cpu", "cameras": ["front", "rear"], "dnns": ["object"], "dnn.object.model": str(file)}
    flat |= {"dnn.object.decoder": "yolo", "dnn.object.labels": ["car", "truck"]}
    message = rf"dnn.object.max_batch is 4, but .*one.{suffix} takes one image at a time: .*; allowed: 1"
    with pytest.raises(ConfigError, match=message):
        build(to_config({**flat, "dnn.object.max_batch": 4}))
    if suffix == "onnx":  # one camera, even if named twice, has nothing to batch
        (task,) = build(to_config({**flat, "dnn.object.max_batch": 4, "dnn.object.cameras": ["rear", "rear"]})).tasks
        assert (task.max_batch, task.batches, task.cameras) == (1, {}, ("rear",))
