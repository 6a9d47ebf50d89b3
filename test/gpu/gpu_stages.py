"""A network whose stages the tests on a GPU make ready, and what they need for it."""

from __future__ import annotations

import pytest
import torch
import torchvision

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.compilers import missing_compiler
from multi_dnn_ros.backends.precision import allowed_precisions

GPU = torch.device("cuda", 0)
EXAMPLE = (torch.zeros(1, 3, 96, 128),)


def network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torchvision.models.resnet18(weights=None, num_classes=10).eval()


def through(stages: tuple, inputs: Tensors) -> Tensors:
    with torch.inference_mode():
        for stage in stages:
            inputs = stage(inputs)
        torch.cuda.synchronize(GPU)
        return tuple(tensor.cpu() for tensor in inputs)


def needs(precision: str, backend: str) -> None:
    if precision not in allowed_precisions("cuda", backend, torch.cuda.get_device_capability(GPU)):
        pytest.skip(f"this GPU has no {precision}")
    if backend == "inductor" and missing_compiler(GPU):
        pytest.skip(f"Inductor {missing_compiler(GPU)}")


def on_gpu(inputs: Tensors) -> Tensors:
    return tuple(tensor.to(GPU) for tensor in inputs)
