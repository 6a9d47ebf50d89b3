"""Convolutions and ReLUs as one kernel, cuDNN's or our own. CPU twin: test/backends/test_fused_activations.py."""

from __future__ import annotations

import pytest
import torch
import torchvision
from gpu_stages import EXAMPLE, GPU, needs, network, on_gpu, through
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.backends.agreement import check_agreement, probe
from multi_dnn_ros.backends.compilers import missing_compiler
from multi_dnn_ros.backends.cuda_graph import Captured, CudaGraph
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.fused_activations import FusedActivations, fused
from multi_dnn_ros.backends.fused_convolution import CONVOLUTION_RELU, by_cudnn
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.precision import PRECISIONS, InPrecision, cast_stage, float32_products
from multi_dnn_ros.choices import choose_backend
from multi_dnn_ros.models.cut import cut

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


class Recorder(Eager):
    """Keeps the stages that it was given."""

    def prepare(self, stages, inputs, device, shared=None):
        self.given = list(stages)
        return super().prepare(stages, inputs, device, shared)


def fusions(stage: nn.Module) -> int:
    graphs = [part for part in stage.modules() if isinstance(part, torch.fx.GraphModule)]
    return sum(node.target is CONVOLUTION_RELU for each in graphs for node in each.graph.nodes)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("multi_dnn_ros")]


@pytest.mark.parametrize("name", ["resnet18", "regnet_y_400mf", "squeezenet1_1", "mnasnet0_5"])
@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16", "bf16"])
def test_the_gpu_bears_what_is_fused(name: str, precision: str, caplog: pytest.LogCaptureFixture):
    """Groups of channels among it (RegNet), and groups of one (MNASNet)."""
    needs(precision, "cuda_graph")
    torch.manual_seed(0)
    module = torchvision.models.get_model(name, weights=None, num_classes=10).eval()
    stages = cut(module, EXAMPLE, 2, fold_batch_norm=True)
    kernels = Recorder()
    tolerance = PRECISIONS[precision].tolerance(GPU)
    fusing = FusedActivations(CudaGraph(tolerance, kernels=kernels, dnn="a"), tolerance, "a")
    inputs = probe(EXAMPLE)
    with torch.inference_mode():  # before the stages, which share the weights, are moved
        expected = (module(*inputs),)
    prepared = InPrecision(PRECISIONS[precision], fusing, "a").prepare(stages, EXAMPLE, GPU)
    assert not messages(caplog)
    assert all(isinstance(stage, Captured) for stage in prepared)
    assert 5 < sum(map(fusions, kernels.given)) <= sum(fusions(fused(stage)) for stage in stages)
    check_agreement(through(prepared, on_gpu(inputs)), expected, 2 * tolerance)


@pytest.mark.parametrize("backend", ["cuda_graph", "inductor"])
@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16", "bf16"])
def test_backends_capture_what_is_fused(backend: str, precision: str, caplog: pytest.LogCaptureFixture):
    needs(precision, backend)
    module, inputs = network(), probe(EXAMPLE)
    with torch.inference_mode():
        expected = (module(*inputs),)
    prepared = choose_backend(backend, GPU, precision, dnn="a").prepare(
        cut(module, EXAMPLE, 1, fold_batch_norm=True), EXAMPLE, GPU
    )
    assert not messages(caplog)
    assert isinstance(prepared[0], Captured)
    check_agreement(through(prepared, on_gpu(inputs)), expected, PRECISIONS[precision].tolerance(GPU))


def convolutions(dtype: torch.dtype, layout: torch.memory_format) -> list[tuple[Tensors, torch.Tensor, tuple]]:
    """(input, weight, bias), z and geometry, of several sizes."""
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


@pytest.mark.parametrize("tries", [False, True], ids=["by_rule", "tried_out"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_what_lay_in_memory_before_does_no_harm(
    precision: str, layout: torch.memory_format, tries: bool, monkeypatch: pytest.MonkeyPatch
):
    """PyTorch passes memory that it has not written yet as what is added, times 0; what is no number stays none so."""
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


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_results_lie_as_compilers_are_told(precision: str, layout: torch.memory_format):
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
def test_fewer_kernels_run(precision: str):
    chosen = PRECISIONS[precision]
    (stage,) = cut(network(), EXAMPLE, 1, fold_batch_norm=True)
    plain = cast_stage(stage, chosen.dtype, channels_last=True).to(GPU) if precision == "fp16" else stage.to(GPU)
    inputs = on_gpu(probe(EXAMPLE))

    def kernels(module: nn.Module) -> int:
        with torch.inference_mode(), float32_products(chosen.tf32):
            module(inputs)
            torch.cuda.synchronize(GPU)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                module(inputs)
                torch.cuda.synchronize(GPU)
        return sum(event.count for event in profile.key_averages() if event.self_device_time_total)

    apart, together = kernels(plain), kernels(fused(plain))
    assert together < apart - 17  # each of ResNet18's ReLUs was a kernel, and so were most of its biases and sums


@pytest.mark.parametrize(("channels", "groups", "side"), [(696, 3, 28), (1392, 6, 14), (3712, 16, 7)])
@pytest.mark.parametrize("images", [1, 2])
def test_convolutions_in_groups_are_faster(channels: int, groups: int, side: int, images: int) -> None:
    """RegNetY-32GF's: cuDNN's take several times as long as the arithmetic, and with the ReLU ten times that."""
    if missing_compiler(GPU):
        pytest.skip(f"Triton {missing_compiler(GPU)}")
    torch.manual_seed(0)
    layers = (nn.Conv2d(channels, channels, 3, padding=1, groups=groups), nn.ReLU())
    example = (torch.zeros(images, channels, side, side),)
    kernels = Recorder()
    tolerance = PRECISIONS["fp16"].tolerance(GPU)
    stages = cut(nn.Sequential(*layers).eval(), example, 1)
    InPrecision(PRECISIONS["fp16"], FusedActivations(kernels, tolerance, "a"), "a").prepare(stages, example, GPU)
    assert fusions(kernels.given[0]) == 1
    inputs = on_gpu(probe(example))

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
    if missing_compiler(GPU):
        pytest.skip(f"Triton {missing_compiler(GPU)}")
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
            for call in (by_cudnn, CONVOLUTION_RELU)
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
    stages = cut(nn.Sequential(grouped, nn.ReLU(), nn.Conv2d(512, 64, 1), nn.ReLU()).eval(), example, 1)
    InPrecision(chosen, FusedActivations(kernels, chosen.tolerance(GPU), "a"), "a").prepare(stages, example, GPU)
    inputs = on_gpu(probe(example))

    def ms(stage: nn.Module) -> float:
        with torch.inference_mode():
            return gpu_ms(lambda: stage(inputs))

    (plain,) = InPrecision(chosen, Eager(), "a").prepare(stages, example, GPU)
    assert ms(kernels.given[0]) < 1.2 * ms(plain)  # type: ignore[arg-type]
