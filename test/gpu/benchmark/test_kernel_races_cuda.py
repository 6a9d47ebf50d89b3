"""Kernels of our own against cuDNN's, by the GPU's clock. That they compute the same: test/gpu/backends.

CPU twins: test/backends/test_triton_convolution.py, test_fused_activations.py and test_small_products.py.
"""

from __future__ import annotations

import pytest
import torch
import torchvision
from gpu_stages import GPU, Recorder, fusions, needs, needs_compiler, on_gpu, through
from torch import nn
from torch.nn import functional

from multi_dnn_ros.backends import inductor
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.fused_activations import FusedActivations
from multi_dnn_ros.backends.fused_convolution import CONVOLUTION_RELU, cudnn_convolution_relu
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.precision import PRECISIONS, InPrecision
from multi_dnn_ros.graph.cut import cut_module
from multi_dnn_ros.pipeline.choices import choose_backend


@pytest.mark.parametrize(
    ("channels", "groups", "side", "images"), [(696, 3, 28, 1), (1392, 6, 14, 1), (1392, 6, 14, 2), (3712, 16, 7, 1)]
)
def test_convolutions_in_groups_are_faster(channels: int, groups: int, side: int, images: int) -> None:
    """RegNetY-32GF's: cuDNN's take several times as long as the arithmetic, and with the ReLU ten times that."""
    needs_compiler("Triton")
    torch.manual_seed(0)
    layers = (nn.Conv2d(channels, channels, 3, padding=1, groups=groups), nn.ReLU())
    example = (torch.zeros(images, channels, side, side),)
    kernels = Recorder()
    tolerance = PRECISIONS["fp16"].tolerance(GPU)
    stages = cut_module(nn.Sequential(*layers).eval(), example, 1)
    InPrecision(PRECISIONS["fp16"], FusedActivations(kernels, tolerance, "a"), "a").prepare(stages, example, GPU)
    assert fusions(kernels.given[0]) == 1
    inputs = on_gpu(noise_like(example))

    def ms(stage: nn.Module) -> float:
        with torch.inference_mode():
            return gpu_ms(lambda: stage(inputs))

    (plain,) = InPrecision(PRECISIONS["fp16"], Eager(), "a").prepare(stages, example, GPU)
    apart_ms, together_ms = ms(plain), ms(kernels.given[0])  # type: ignore[arg-type]
    print(f"{channels} channels, {images} images: {apart_ms * 1e3:.1f} us, in one {together_ms * 1e3:.1f} us")
    assert together_ms < 0.7 * apart_ms


@pytest.mark.parametrize(
    ("images", "channels", "outputs", "side", "window", "step", "share"),
    [
        (8, 3, 64, 224, 3, 1, 0.7),  # VGG16's first
        (1, 3, 64, 224, 7, 2, 1.0),  # ResNet152's
        (1, 512, 512, 7, 3, 1, 0.8),
        (1, 256, 1024, 14, 1, 1, 1.0),
        (2, 448, 384, 8, 3, 1, 0.9),  # InceptionV3's
        (8, 512, 512, 28, 3, 1, 1.0),  # where cuDNN's has enough to do, it is taken
    ],
)
def test_it_is_never_slower_than_cudnns(
    images: int, channels: int, outputs: int, side: int, window: int, step: int, share: float
) -> None:
    """share: of its time, at most; and a tenth more, as no two measurements are the same."""
    needs_compiler("Triton")
    torch.manual_seed(0)
    shapes = (images, channels, side, side), (outputs, channels, window, window)
    image, weight = (torch.randn(s, device=GPU).half().to(memory_format=torch.channels_last) for s in shapes)
    weight /= weight[0].numel() ** 0.5
    tensors = (image, weight, torch.randn(outputs, device=GPU).half(), None)
    geometry = ([step] * 2, [window // 2] * 2, [1, 1], 1)
    with torch.inference_mode():
        expected = functional.conv2d(*(each.double() for each in tensors[:3]), *geometry).relu()
        check_agreement(
            (CONVOLUTION_RELU(*tensors, *geometry).double(),), (expected,), PRECISIONS["fp16"].tolerance(GPU)
        )
        cudnns_us, ours_us = (
            1e3 * min(gpu_ms(lambda call=call: call(*tensors, *geometry)) for _ in range(3))
            for call in (cudnn_convolution_relu, CONVOLUTION_RELU)
        )
    print(f"{images} images, {channels} to {outputs}, {side} px: cuDNN's {cudnns_us:.1f} us, now {ours_us:.1f} us")
    assert ours_us < 1.1 * share * cudnns_us


def test_what_is_slower_as_one_operation_stays_apart() -> None:
    """Groups of few channels, for which there is no fast kernel."""
    torch.manual_seed(0)
    grouped = nn.Conv2d(512, 512, 3, padding=1, groups=64)
    example = (torch.zeros(2, 512, 28, 28),)
    kernels = Recorder()
    chosen = PRECISIONS["fp16"]
    stages = cut_module(nn.Sequential(grouped, nn.ReLU(), nn.Conv2d(512, 64, 1), nn.ReLU()).eval(), example, 1)
    InPrecision(chosen, FusedActivations(kernels, chosen.tolerance(GPU), "a"), "a").prepare(stages, example, GPU)
    inputs = on_gpu(noise_like(example))

    def ms(stage: nn.Module) -> float:
        with torch.inference_mode():
            return gpu_ms(lambda: stage(inputs))

    (plain,) = InPrecision(chosen, Eager(), "a").prepare(stages, example, GPU)
    assert ms(kernels.given[0]) < 1.2 * ms(plain)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("channels", "squeezed", "images"), [(696, 174, 1), (1392, 348, 1), (1392, 348, 2), (3712, 348, 1)]
)
def test_small_products_are_faster_as_sums(
    channels: int, squeezed: int, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RegNetY-32GF's squeeze and excitation, compiled."""
    needs("fp16", "inductor")
    torch.manual_seed(0)
    module = torchvision.ops.SqueezeExcitation(channels, squeezed).eval()
    inputs = noise_like((torch.zeros(images, channels, 14, 14),))
    with torch.inference_mode():
        expected = (module(*inputs),)

    def ms() -> float:
        stages = choose_backend("inductor", GPU, "fp16", dnn="a").prepare(cut_module(module, inputs, 1), inputs, GPU)
        check_agreement(through(stages, on_gpu(inputs)), expected, PRECISIONS["fp16"].tolerance(GPU))
        with torch.inference_mode():
            return gpu_ms(lambda: stages[0](stages[0].inputs))  # type: ignore[attr-defined]

    ours = ms()
    monkeypatch.setattr(inductor, "sum_small_products", lambda graph: 0)
    plain = ms()
    print(f"{channels} channels, {images} images: {plain * 1e3:.1f} us, as sums {ours * 1e3:.1f} us")
    assert ours < plain
