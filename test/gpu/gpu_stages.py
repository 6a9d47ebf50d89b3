"""Networks for the tests on a GPU, and what several of these tests need around them.

The networks are small: what takes the time of these tests is to compile, and to find a kernel, for each layer shape.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.squeezenet import Fire

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.agreement import noise_like
from multi_dnn_ros.backends.compilers import missing_compiler
from multi_dnn_ros.backends.registry import allowed_precisions
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.serving.choices import choose_backend

GPU = torch.device("cuda", 0)
EXAMPLE = (torch.zeros(1, 3, 96, 128),)


@torch.no_grad()
def _in_scale(module: nn.Module) -> nn.Module:
    """Results are up to 1, and all of that depends on the image; errors are judged by how large results are."""
    *_, last = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    last.bias.zero_()
    last.weight /= module.eval()(*noise_like(EXAMPLE)).abs().max()
    return module


def residual() -> nn.Module:
    """ResNet with one block of each width: sums before ReLUs, strides, a 1x1 shortcut."""
    torch.manual_seed(0)
    return _in_scale(ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10))


def fire() -> nn.Module:
    """SqueezeNet's modules: two convolutions of one input, whose results are concatenated."""
    torch.manual_seed(0)
    first = (nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2))
    modules = (Fire(64, 16, 64, 64), Fire(128, 16, 64, 64), Fire(128, 32, 128, 128))
    return _in_scale(nn.Sequential(*first, *modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)))


NETWORKS = {each.__name__: each for each in (residual, fire)}


class Warnings(logging.Handler):
    """Messages that the package logs inside the block, warnings and worse; for set-ups that outlive a test's caplog."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("multi_dnn_ros").addHandler(self)
        return self.messages

    def __exit__(self, *exception: object) -> None:
        logging.getLogger("multi_dnn_ros").removeHandler(self)


@dataclass(frozen=True)
class Prepared:
    """`residual()` as one backend makes it ready in three jobs; with inductor in two, as each is compiled.

    inputs, expected: an image and the network's results on the CPU, float32. warnings: logged meanwhile. progress: the
    backend's lines.
    """

    stages: tuple[Stage, ...]
    inputs: Tensors
    expected: Tensors
    warnings: list[str]
    progress: list[str] = field(default_factory=list)


def prepare_residual(backend: str, precision: str) -> Prepared:
    """Seconds, with inductor half a minute: tests share it by the fixture `prepared`."""
    module, inputs = residual(), noise_like(EXAMPLE)
    with torch.inference_mode():  # before the stages, which share the weights, are moved
        expected = (module(*inputs),)
    settings = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    progress: list[str] = []
    jobs = cut_module(module, EXAMPLE, 2 if backend == "inductor" else 3, fold_batch_norm=True)
    with Warnings() as warnings:
        chosen = choose_backend(backend, GPU, precision, dnn="a", progress=progress.append)
        stages = chosen.prepare(jobs, EXAMPLE, GPU)
    assert settings == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    return Prepared(stages, inputs, expected, warnings, progress)


def through(stages: tuple, inputs: Tensors) -> Tensors:
    with torch.inference_mode():
        for stage in stages:
            inputs = stage(inputs)
        torch.cuda.synchronize(GPU)
        return tuple(tensor.cpu() for tensor in inputs)


def needs(precision: str, backend: str) -> None:
    """Skip the test where the GPU or a compiler for it lacks what it needs."""
    if precision not in allowed_precisions("cuda", backend, torch.cuda.get_device_capability(GPU)):
        pytest.skip(f"this GPU has no {precision}")
    if backend == "inductor":
        needs_compiler("Inductor")


def needs_compiler(what: str) -> None:
    if missing_compiler(GPU):
        pytest.skip(f"{what} {missing_compiler(GPU)}")


def on_gpu(inputs: Tensors) -> Tensors:
    return tuple(tensor.to(GPU) for tensor in inputs)
