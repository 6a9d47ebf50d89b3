"""Fusion of a convolution with its ReLU: what is fused, what is not, and what happens if it fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from multi_dnn_ros.backends import Shared, Tensors, fused_activations
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.capture import CudnnBenchmark
from multi_dnn_ros.backends.cuda_graph import CudaGraph
from multi_dnn_ros.backends.eager import Eager
from multi_dnn_ros.backends.fused_activations import FusedActivations, fuse
from multi_dnn_ros.backends.fused_convolution import CONVOLUTION_RELU
from multi_dnn_ros.backends.precision import PRECISIONS, InPrecision
from multi_dnn_ros.graph.cut import GraphStage, cut_module, untraced_stage
from multi_dnn_ros.pipeline.choices import choose_backend

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
aten = torch.ops.aten
IMAGE = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(1))


def weight_of(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(2)) / 8)


WEIGHT, OTHER, GROUPED, BIAS = weight_of(8, 8, 3, 3), weight_of(8, 8, 1, 1), weight_of(12, 2, 3, 3), weight_of(8)


def convolved(image: torch.Tensor, weight: torch.Tensor = WEIGHT, padding: int = 1) -> torch.Tensor:
    return functional.conv2d(image, weight, BIAS, padding=padding)


def stage_of(function: Callable[[torch.Tensor], object], image: torch.Tensor = IMAGE) -> GraphStage:
    """A stage of `function` with its in-place operations, which an exported graph would not have."""

    def flat(image: torch.Tensor) -> tuple:
        results = function(image)
        return results if isinstance(results, tuple) else (results,)

    with torch.no_grad():
        return GraphStage(make_fx(flat)(image), (("all",),), 0.0)


def fusions(stage: object) -> tuple[int, int]:
    """Number of fused operations without and with an addition."""
    graphs = [part for part in stage.modules() if isinstance(part, torch.fx.GraphModule)]  # type: ignore[attr-defined]
    nodes = [node for each in graphs for node in each.graph.nodes if node.target is CONVOLUTION_RELU]
    counts = Counter(node.args[3] is None for node in nodes)
    return counts[True], counts[False]


def through(stages: tuple, inputs: Tensors) -> Tensors:
    with torch.inference_mode():
        for stage in stages:
            inputs = stage(inputs)
        return inputs


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("multi_dnn_ros")]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: convolved(x).relu(), (1, 0)),
        (lambda x: convolved(x).relu_(), (1, 0)),
        (lambda x: functional.conv2d(x, WEIGHT).relu(), (1, 0)),
        (lambda x: functional.conv2d(x, WEIGHT, BIAS, stride=2, padding=(1, 0), dilation=2).relu(), (1, 0)),
        (lambda x: functional.conv2d(x, GROUPED, groups=4).relu(), (1, 0)),
        (lambda x: (convolved(x) + x).relu(), (0, 1)),
        (lambda x: (x + convolved(x)).relu_(), (0, 1)),
        (lambda x: convolved(x).add_(x).relu_(), (0, 1)),
        (lambda x: (convolved(x) + convolved(x, OTHER, 0)).relu(), (0, 1)),
        (lambda x: convolved(convolved(convolved(x).relu()).relu_()).add_(x).relu_(), (2, 1)),
        (lambda x: (x.relu_(), convolved(x).relu()), (1, 0)),
        (lambda x: (convolved(x) + x.flip(3).relu_()).relu(), (0, 0)),  # the write is in between
        (lambda x: (x.flip(3).relu_() + convolved(x)).relu(), (0, 1)),  # here it is before the convolution
    ],
)
def test_a_convolution_with_relu_is_fused(function: Callable, expected: tuple[int, int]) -> None:
    stage = stage_of(function)
    fused = fuse(stage)
    assert fusions(fused) == expected
    check_agreement(through((fused,), (IMAGE.clone(),)), through((stage,), (IMAGE.clone(),)), 1e-5)


def written_between(image: torch.Tensor) -> torch.Tensor:
    result = convolved(image)
    image.mul_(0)
    return result.relu()


def sum_written_between(image: torch.Tensor) -> torch.Tensor:
    z = image.flip(3)
    total = convolved(image) + z
    z.mul_(0)
    return total.relu()


def written_to_by_the_sum(image: torch.Tensor) -> tuple:
    z = image.flip(3)
    return z.add_(convolved(image)).relu(), z


def twice(image: torch.Tensor) -> torch.Tensor:
    result = convolved(image)
    return (result + result).relu()


def used_again(image: torch.Tensor) -> torch.Tensor:
    result = convolved(image)
    return result.relu() + result.sigmoid()


def sum_used_again(image: torch.Tensor) -> torch.Tensor:
    total = convolved(image) + image
    return total.relu() + total.sigmoid()


def given_out(image: torch.Tensor) -> tuple:
    result = convolved(image)
    return result, result.relu()


@pytest.mark.parametrize(
    "function",
    [
        written_between,
        sum_written_between,
        written_to_by_the_sum,
        twice,
        used_again,
        sum_used_again,
        given_out,
        convolved,
        lambda x: convolved(x).sigmoid(),
        lambda x: functional.relu6(convolved(x)),
        lambda x: x.relu(),
        lambda x: torch.add(convolved(x), x, alpha=2).relu(),
        lambda x: (convolved(x) + 1).relu(),
        lambda x: (convolved(x) + x[:, :, :1]).relu(),
        lambda x: (convolved(x) + x.double()).relu(),
        lambda x: functional.conv_transpose2d(x, WEIGHT).relu(),
        lambda x: functional.conv1d(x[:, :, 0], WEIGHT[:, :, 0]).relu(),
        lambda x: functional.conv2d(x.double(), WEIGHT.double()).relu(),
    ],
)
def test_other_operations_are_not_fused(function: Callable) -> None:
    stage = stage_of(function)
    assert fuse(stage) is stage


def test_an_unknown_operation_in_between_prevents_fusion_if_it_reads_a_tensor() -> None:
    """Time marks read no tensor, so they do not prevent it."""
    for reads, expected in ((True, (0, 0)), (False, (1, 0))):
        stage = stage_of(lambda x: convolved(x).relu())
        graph = stage.graph.graph
        (image,) = graph.find_nodes(op="placeholder")
        (relu,) = graph.find_nodes(op="call_function", target=aten.relu.default)
        with graph.inserting_before(relu):
            graph.call_function(print, (image,) if reads else ("mark",))
        assert fusions(fuse(stage)) == expected


@pytest.mark.parametrize(
    ("name", "jobs", "expected"),
    [
        ("resnet18", 1, (9, 8)),
        ("resnet18", 4, (9, 8)),
        ("squeezenet1_1", 4, (26, 0)),
        ("regnet_x_400mf", 1, (45, 22)),
    ],
)
def test_fused_networks_compute_the_same(
    name: str, jobs: int, expected: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Each ReLU of ResNet18 (17) and RegNetX-400MF (67) follows a convolution."""
    torch.manual_seed(0)
    module = torchvision.models.get_model(name, weights=None, num_classes=5).eval()
    example = (torch.zeros(1, 3, 64, 64),)
    stages = cut_module(module, example, jobs, fold_batch_norm=True)
    before = [str(stage.graph.graph) for stage in stages]
    prepared = FusedActivations(Eager()).prepare(stages, example, CPU)
    assert not warnings_in(caplog)
    found = [fusions(stage) for stage in prepared]
    # No cut separates a convolution from its ReLU here, because cuts before element-wise operations cost double.
    assert tuple(map(sum, zip(*found, strict=True))) == expected
    assert [str(stage.graph.graph) for stage in stages] == before
    inputs = noise_like(example)
    with torch.inference_mode():
        expected_result = module(*inputs)
    check_agreement(through(prepared, inputs), (expected_result,), 1e-4)
    check_agreement(through(tuple(stages), inputs), (expected_result,), 1e-4)
    for stage, fused in zip(stages, prepared, strict=True):
        tensors = {id(each) for each in (*stage.parameters(), *stage.buffers())}
        assert {id(each) for each in (*fused.parameters(), *fused.buffers())} == tensors  # type: ignore[attr-defined]
    again = FusedActivations(Eager()).prepare(stages, example, CPU)  # as after a failure of the GPU
    assert [fusions(stage) for stage in again] == found


def test_stages_without_a_fusion_are_passed_on_unchanged() -> None:
    class Recorder(Eager):
        def prepare(self, stages, inputs, device, shared=None):  # type: ignore[no-untyped-def]
            given.append((list(stages), inputs, shared))
            return super().prepare(stages, inputs, device, shared)

    given: list[tuple] = []
    shared = Shared()
    layer = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU())
    stages = [untraced_stage(layer), nn.Identity(), stage_of(lambda x: x.relu())]
    FusedActivations(Recorder()).prepare(stages, (IMAGE,), CPU, shared)
    with_one = [*stages, stage_of(lambda x: convolved(x).relu())]
    FusedActivations(Recorder()).prepare(with_one, (IMAGE,), CPU, shared)
    (first, inputs, passed), (second, *_) = given
    assert first == stages
    assert inputs[0] is IMAGE
    assert passed is shared
    assert second[:3] == stages
    assert second[3] is not with_one[3]
    assert fusions(second[3]) == (1, 0)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED\nmore"), "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
        (2.0, "result 0 is off by"),
        (float("nan"), "result 0: the values that are not finite differ"),
    ],
)
def test_a_stage_that_fails_or_differs_when_fused_stays_unfused(
    broken: Exception | float, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(nn.Module):
        def forward(self, carried: Tensors) -> Tensors:
            if isinstance(broken, Exception):
                raise broken
            return tuple(tensor * broken for tensor in carried)

    stages = [stage_of(lambda x: convolved(x).relu()) for _ in range(3)]
    real = fuse
    monkeypatch.setattr(fused_activations, "fuse", lambda stage: Broken() if stage is stages[1] else real(stage))
    prepared = FusedActivations(Eager(), 1e-4, "lane").prepare(stages, (IMAGE,), CPU)
    (warning,) = warnings_in(caplog)
    start = "job 2 of lane: conv+ReLU fusion disabled: "
    assert warning.startswith(start + reason)
    assert "\n" not in warning
    assert [fusions(stage) for stage in prepared] == [(1, 0), (0, 0), (1, 0)]
    assert prepared[1] is stages[1]


def test_out_of_memory_in_a_fused_operation_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(stage: nn.Module) -> nn.Module:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(fused_activations, "fuse", full)
    with pytest.raises(torch.OutOfMemoryError):
        FusedActivations(Eager()).prepare([stage_of(lambda x: convolved(x).relu())], (IMAGE,), CPU)


def test_bf16_stages_are_fused_too(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    module = torchvision.models.resnet18(weights=None, num_classes=5).eval()
    example = (torch.zeros(1, 3, 64, 64),)
    tolerance = PRECISIONS["bf16"].tolerance(CPU)
    stages = cut_module(module, example, 3, fold_batch_norm=True)
    backend = InPrecision(PRECISIONS["bf16"], FusedActivations(Eager(), tolerance, "a"), "a")
    prepared = backend.prepare(stages, example, CPU)
    assert not warnings_in(caplog)
    assert tuple(map(sum, zip(*(fusions(stage) for stage in prepared), strict=True))) == (9, 8)
    assert all(fusions(stage) == (0, 0) for stage in stages)
    inputs = noise_like(example)
    with torch.inference_mode():
        check_agreement(through(prepared, inputs), (module(*inputs),), 3 * tolerance)


@settings(max_examples=150)
@given(
    groups=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    window=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    size=st.tuples(st.integers(1, 2), st.integers(5, 8), st.integers(5, 8)),
    has_bias=st.booleans(),
    adds=st.booleans(),
    channels_last=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_any_fused_convolution_has_the_result_and_strides_of_its_fake(
    groups: int,
    channels: tuple[int, int],
    window: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    size: tuple[int, int, int],
    has_bias: bool,
    adds: bool,
    channels_last: tuple[bool, bool, bool],
) -> None:
    image_last, weight_last, z_last = (
        torch.channels_last if last else torch.contiguous_format for last in channels_last
    )
    images, height, width = size
    inputs, outputs = (count * groups for count in channels)
    torch.manual_seed(0)
    image = torch.randn(images, inputs, height, width).to(memory_format=image_last)
    weight = torch.randn(outputs, channels[0], *window).to(memory_format=weight_last)
    bias = torch.randn(outputs) if has_bias else None
    geometry = (list(stride), list(padding), list(dilation), groups)
    with torch.inference_mode():
        expected = functional.conv2d(image, weight, bias, *geometry)
        z = torch.randn(expected.shape).to(memory_format=z_last)
        tensors = (image, weight, bias, z if adds else None)
        result = CONVOLUTION_RELU(*tensors, *geometry)
    torch.testing.assert_close(result, (expected + z if adds else expected).relu())
    mode = FakeTensorMode()
    with mode:
        fake = CONVOLUTION_RELU(*(each if each is None else mode.from_tensor(each) for each in tensors), *geometry)
    assert (fake.shape, fake.stride(), fake.dtype) == (result.shape, result.stride(), result.dtype)


def test_slower_fusions_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fake timing, in which grouped convolutions are slow."""
    monkeypatch.setattr(fused_activations, "_is_slower", lambda args: args[-1] > 1)

    wide, narrow = weight_of(8, 2, 3, 3), weight_of(8, 4, 1, 1)

    def function(image: torch.Tensor) -> torch.Tensor:
        image = functional.conv2d(convolved(image).relu(), wide, padding=1, groups=4).relu()
        return functional.conv2d(convolved(image).relu_(), narrow, groups=2).relu()

    stage = stage_of(function)
    with torch.no_grad(), fused_activations._FusionTiming() as timing:
        results = fuse(stage)((IMAGE,))
    assert timing.slower == [1, 3]
    rest = fuse(stage, without=timing.slower)
    assert fusions(rest) == (2, 0)
    with torch.no_grad():
        check_agreement(results, stage((IMAGE,)), 1e-5)
        check_agreement(rest((IMAGE,)), stage((IMAGE,)), 1e-5)
    assert fuse(stage, without=range(4)) is stage


def test_backends_fuse_on_a_gpu_and_not_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Except inductor in float32, which needs the convolutions to choose the layout."""
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))

    def wrapped(name: str, precision: str, device: torch.device) -> list[type]:
        backend = choose_backend(name, device, precision, dnn="a")
        types = [type(backend)]
        while isinstance(backend, (CudnnBenchmark, InPrecision, FusedActivations)):
            backend = backend.backend  # type: ignore[assignment]
            types.append(type(backend))
        return types

    assert wrapped("auto", "auto", GPU) == [CudnnBenchmark, FusedActivations, CudaGraph]
    for name in ("cuda_graph", "inductor"):
        for precision in ("fp16", "bf16"):
            assert wrapped(name, precision, GPU) == [CudnnBenchmark, InPrecision, FusedActivations, CudaGraph]
    assert wrapped("cuda_graph", "tf32", GPU) == [CudnnBenchmark, InPrecision, FusedActivations, CudaGraph]
    assert wrapped("inductor", "fp32", GPU) == [CudnnBenchmark, InPrecision, CudaGraph]
    assert wrapped("inductor", "auto", GPU) == [CudnnBenchmark, CudaGraph]
    assert wrapped("eager", "auto", GPU) == [Eager]
    assert FusedActivations not in wrapped("inductor", "bf16", CPU)
