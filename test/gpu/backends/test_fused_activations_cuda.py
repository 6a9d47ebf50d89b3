"""Convolutions and ReLUs as one kernel, cuDNN's or our own: what they compute. That they are faster:
test/gpu/benchmark/test_kernel_races_cuda.py. CPU twin: test/backends/test_fused_activations.py.
"""

from __future__ import annotations

import pytest
import torch
from gpu_stages import (
    EXAMPLE,
    GPU,
    NETWORKS,
    Recorder,
    Warnings,
    fusions,
    needs,
    on_gpu,
    residual,
    through,
)
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.cuda_graph import Captured, CudaGraph
from multi_dnn_ros.backends.fused_activations import FusedActivations, fuse
from multi_dnn_ros.backends.fused_convolution import CONVOLUTION_RELU
from multi_dnn_ros.backends.precision import PRECISIONS, InPrecision, cast_stage, float32_products
from multi_dnn_ros.graph.cut import cut_module

NCHW, NHWC = torch.contiguous_format, torch.channels_last


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("residual", "fp16"),
        ("grouped", "fp32"),
        ("grouped", "fp16"),
        ("fire", "bf16"),
        ("depthwise", "auto"),
        ("depthwise", "fp16"),
    ],
)
def test_fused_layers_run_on_the_gpu(name: str, precision: str):
    """All kinds of layers in float32 and in 16 bits; residual() in every precision: test_backends_cuda.py."""
    needs(precision, "cuda_graph")
    module = NETWORKS[name]()
    stages = cut_module(module, EXAMPLE, 2, fold_batch_norm=True)
    kernels = Recorder()
    tolerance = PRECISIONS[precision].tolerance(GPU)
    fusing = FusedActivations(CudaGraph(tolerance, kernels=kernels, dnn="a"), tolerance, "a")
    inputs = noise_like(EXAMPLE)
    with torch.inference_mode():  # before the stages, which share the weights, are moved
        expected = (module(*inputs),)
    with Warnings() as warnings:
        prepared = InPrecision(PRECISIONS[precision], fusing, "a").prepare(stages, EXAMPLE, GPU)
    assert warnings == []
    assert all(isinstance(stage, Captured) for stage in prepared)
    # In float32 cuDNN may be slower at one call for each of so few layers.
    fewest = 0 if PRECISIONS[precision].dtype is torch.float32 else 1
    assert fewest <= sum(map(fusions, kernels.given)) <= sum(fusions(fuse(stage)) for stage in stages)
    check_agreement(through(prepared, on_gpu(inputs)), expected, 2 * tolerance)


def convolutions(dtype: torch.dtype, layout: torch.memory_format) -> list[tuple[Tensors, torch.Tensor, tuple]]:
    """(input, weight, bias), z and geometry in several sizes."""
    generator = torch.Generator(GPU).manual_seed(0)
    made = []
    for images, channels, outputs, side, window, step, groups in (
        (1, 64, 64, 56, 3, 1, 1),
        (1, 64, 256, 56, 1, 1, 1),
        (2, 64, 128, 56, 3, 2, 1),
        (1, 64, 64, 14, 3, 1, 4),
        (2, 144, 96, 15, 3, 2, 3),
        (1, 256, 256, 112, 1, 1, 1),
        (1, 3, 64, 96, 7, 2, 1),
        (1, 5, 7, 9, 3, 1, 1),  # of no use to tensor cores
    ):
        shapes = (images, channels, side, side), (outputs, channels // groups, window, window), (outputs,)
        image, weight, bias = (torch.randn(shape, generator=generator, device=GPU).to(dtype) for shape in shapes)
        image, weight = (each.to(memory_format=layout) for each in (image, weight / weight[0].numel() ** 0.5))
        geometry = ([step] * 2, [window // 2] * 2, [1, 1], groups)
        z = torch.randn_like(functional.conv2d(image, weight, bias, *geometry))
        made.append(((image, weight, bias), z, geometry))
    return made


@pytest.mark.parametrize(
    ("precision", "layout", "tries"),
    [  # every two of them together once
        pytest.param(precision, layout, tries, id=f"{precision}-{name}")
        for precision, swapped in (("fp32", False), ("tf32", True), ("fp16", False), ("bf16", True))
        for layout, tries, name in (
            (NCHW, swapped, "nchw-tried_out" if swapped else "nchw-by_rule"),
            (NHWC, not swapped, "nhwc-by_rule" if swapped else "nhwc-tried_out"),
        )
    ],
)
def test_uninitialized_memory_does_not_affect_results(
    precision: str, layout: torch.memory_format, tries: bool, monkeypatch: pytest.MonkeyPatch
):
    """PyTorch passes uninitialized memory as z, with factor 0; NaN in it must not reach the result."""
    needs(precision, "cuda_graph")
    chosen = PRECISIONS[precision]
    hits = 0
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", tries)
    with torch.inference_mode(), float32_products(chosen.tf32):
        for tensors, z, geometry in convolutions(chosen.dtype, layout):
            expected = functional.conv2d(*(each.double() for each in tensors), *geometry)
            for _ in range(4):
                torch.cuda.synchronize(GPU)
                garbage = [torch.full_like(z, float("nan")) for _ in range(4)]
                places = {each.data_ptr() for each in garbage}
                del garbage
                result = CONVOLUTION_RELU(*tensors, None, *geometry)
                hits += result.data_ptr() in places
                assert bool(result.isfinite().all())
                check_agreement((result.double(),), (expected.relu(),), chosen.tolerance(GPU))
                del result
    assert hits >= 16  # half of the results lay where there was no number before


@pytest.mark.parametrize("layout", [NCHW, NHWC], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_results_have_the_strides_of_the_fake(precision: str, layout: torch.memory_format):
    needs(precision, "cuda_graph")
    mode = FakeTensorMode()
    chosen = PRECISIONS[precision]
    with torch.inference_mode(), float32_products(chosen.tf32):
        for tensors, z, geometry in convolutions(chosen.dtype, layout):
            turned = z.contiguous(memory_format=torch.channels_last)  # may lie otherwise than the result
            product = functional.conv2d(*(each.double() for each in tensors), *geometry)
            for given, expected in (
                ((*tensors, None), product),
                ((*tensors, z), product + z),
                ((*tensors, turned), product + z),
                ((*tensors[:2], None, z), product - tensors[2][:, None, None] + z),
            ):
                result = CONVOLUTION_RELU(*given, *geometry)
                check_agreement((result.double(),), (expected.relu(),), chosen.tolerance(GPU))
                with mode:
                    told = CONVOLUTION_RELU(
                        *(each if each is None else mode.from_tensor(each) for each in given), *geometry
                    )
                assert (told.shape, told.stride(), told.dtype) == (result.shape, result.stride(), result.dtype)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_fused_layers_launch_fewer_kernels(precision: str):
    chosen = PRECISIONS[precision]
    (stage,) = cut_module(residual(), EXAMPLE, 1, fold_batch_norm=True)
    plain = cast_stage(stage, chosen.dtype, channels_last=True).to(GPU) if precision == "fp16" else stage.to(GPU)
    inputs = on_gpu(noise_like(EXAMPLE))

    def kernels(module: nn.Module) -> int:
        with torch.inference_mode(), float32_products(chosen.tf32):
            module(inputs)
            torch.cuda.synchronize(GPU)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                module(inputs)
                torch.cuda.synchronize(GPU)
        return sum(event.count for event in profile.key_averages() if event.self_device_time_total)

    apart, together = kernels(plain), kernels(fuse(plain))
    # Each of nine ReLUs was a kernel. So were the biases and sums, but a kernel of our own may be two.
    assert together <= apart - 9
