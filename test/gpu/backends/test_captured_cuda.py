"""Captured graphs: single launch, concurrency, priority, shares of the SMs. CPU twins: test/backends, test/engine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from gpu_stages import EXAMPLE, GPU, Prepared, fire, needs, needs_compiler, on_gpu, through

from multi_dnn_ros.backends import Backend, Tensors, green_contexts
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.capture import CapturedFunction, capture_on
from multi_dnn_ros.backends.cuda_driver import enqueue_on
from multi_dnn_ros.backends.cuda_graph import Captured, CudaGraph
from multi_dnn_ros.backends.preprocess_graph import PreprocessGraph
from multi_dnn_ros.backends.static_stages import single_launches
from multi_dnn_ros.graph.cut import cut_module
from multi_dnn_ros.pipeline.choices import choose_backend
from multi_dnn_ros.vision.preprocess import Preprocess

partitioned = pytest.mark.skipif(not green_contexts.supported(), reason="needs a PyTorch with green contexts")


@pytest.mark.parametrize("backend", ["cuda_graph", "inductor"])
@pytest.mark.parametrize("precision", ["auto", "fp16"])
def test_a_single_launch_writes_the_same_results_to_the_same_memory(
    backend: str, precision: str, prepared: Callable[[str, str], Prepared]
):
    needs(precision, backend)
    ready = prepared(backend, precision)
    stages, inputs = ready.stages, on_gpu(ready.inputs)
    whole = single_launches({1: stages})[1]
    with torch.inference_mode():
        expected = through(stages, inputs)
        for place in stages[-1].outputs:  # type: ignore[attr-defined]
            place.zero_()
        before = torch.cuda.memory_stats(GPU)["allocation.all.allocated"]
        results = whole(inputs)
        assert torch.cuda.memory_stats(GPU)["allocation.all.allocated"] == before
        assert all(result is place for result, place in zip(results, stages[-1].outputs, strict=True))  # type: ignore[attr-defined]
        check_agreement(results, expected, 1e-5)


def test_an_output_that_is_a_constant_of_the_dnn_keeps_its_value():
    class PlusOne(torch.nn.Module):
        def forward(self, carried: Tensors) -> Tensors:
            return (carried[0] + 1.0,)

    class WithAnchors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("anchors", torch.arange(4.0))

        def forward(self, carried: Tensors) -> Tensors:
            return carried[0] * 2.0, self.anchors

    stages = CudaGraph().prepare([PlusOne(), WithAnchors()], (torch.zeros(4),), GPU)
    for chain in (stages, (single_launches({1: stages})[1],)):
        results, anchors = through(chain, on_gpu((torch.ones(4),)))
        assert results.tolist() == [4.0] * 4
        assert anchors.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_single_stage_has_no_further_single_launch():
    assert single_launches({1: CudaGraph().prepare(cut_module(fire(), EXAMPLE, 1), EXAMPLE, GPU)}) == {}


def test_dnns_captured_on_one_stream_may_run_at_the_same_time():
    """As those on a share of the SMs. Products with few rows and a long inner dimension need cuBLAS's workspace."""

    class Products(torch.nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.layers = torch.nn.Sequential(
                *(torch.nn.Linear(8192, 8192, bias=False, device=GPU, dtype=torch.half) for _ in range(2))
            )

        def forward(self, carried: Tensors) -> Tensors:
            return (self.layers(carried[0]),)

    values = torch.randn(98, 8192, generator=torch.Generator().manual_seed(0)).half()
    with torch.cuda.stream(torch.cuda.Stream(GPU)):
        dnns = [CudaGraph().prepare([Products(seed).eval()], (values,), GPU)[0] for seed in range(4)]
        torch.cuda.synchronize(GPU)
    alone = [through((dnn,), on_gpu((values,)))[0] for dnn in dnns]
    streams = [torch.cuda.Stream(GPU) for _ in dnns]
    (there,) = on_gpu((values,))
    torch.cuda.synchronize(GPU)
    with torch.inference_mode():
        for _ in range(50):
            results = []
            for dnn, stream in zip(dnns, streams, strict=True):
                with torch.cuda.stream(stream):
                    for _ in range(4):
                        (result,) = dnn((there,))
                    results.append(result)
            torch.cuda.synchronize(GPU)
            for result, expected in zip(results, alone, strict=True):
                assert torch.equal(result.cpu(), expected)


@pytest.mark.parametrize("fit", ["stretch", "letterbox"])
def test_captured_preprocessing_computes_the_same_and_allocates_nothing(
    fit: str, prepared: Callable[[str, str], Prepared]
):
    preprocess = Preprocess(128, 96, fit=fit, bgr=True, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3))
    first = prepared("cuda_graph", "auto").stages[0]
    assert isinstance(first, Captured)
    graph = PreprocessGraph(preprocess, first.inputs, capture_on(GPU), enqueue_on(GPU).copy)
    rng = np.random.default_rng(0)
    images = [torch.from_numpy(rng.integers(0, 256, (240, 424, 3), np.uint8)).to(GPU) for _ in range(3)]
    graph.specialize((240, 424))
    with torch.inference_mode():
        before = torch.cuda.memory_stats(GPU)["allocation.all.allocated"]
        for image in images:
            (result,) = graph(image)
            assert result is first.inputs[0]
        assert torch.cuda.memory_stats(GPU)["allocation.all.allocated"] == before
        check_agreement((result,), preprocess(images[-1]), 1e-4)


def test_a_capture_preserves_an_input_that_is_still_being_written():
    """The frame in progress was launched on another stream."""
    destination = (torch.zeros(1, 3, 96, 128, device=GPU),)
    graph = PreprocessGraph(Preprocess(128, 96), destination, capture_on(GPU), enqueue_on(GPU).copy)
    torch.cuda.synchronize(GPU)
    with torch.cuda.stream(torch.cuda.Stream(GPU)):
        torch.cuda._sleep(1_000_000_000)  # about half a second
        destination[0].fill_(7.0)
    graph.specialize((240, 424))
    assert bool((destination[0] == 7.0).all())


class SmallProducts(torch.nn.Module):
    """A chain of small kernels: each waits for free SMs on a busy GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.eye(256))

    def forward(self, carried: Tensors) -> Tensors:
        (value,) = carried
        for _ in range(10):
            value = value @ self.one
        return (value,)


def stage() -> Callable[[], object]:
    (captured,) = CudaGraph().prepare([SmallProducts()], (torch.zeros(256, 256),), GPU)
    return lambda: captured(captured.inputs)  # type: ignore[attr-defined]


def all_in_one() -> Callable[[], object]:
    stages = CudaGraph().prepare([SmallProducts(), SmallProducts()], (torch.zeros(256, 256),), GPU)
    whole = single_launches({1: stages})[1]
    return lambda: whole(stages[0].inputs)  # type: ignore[attr-defined]


def function() -> Callable[[], object]:
    source = (torch.zeros(256, 256, device=GPU),)
    captured = CapturedFunction(SmallProducts().to(GPU), source, capture_on(GPU))
    return lambda: captured(source)


def preprocessing() -> Callable[[], object]:
    products = SmallProducts().to(GPU)

    def preprocess(image: torch.Tensor) -> Tensors:
        return products((image[..., 0].float(),))

    image = torch.zeros(256, 256, 3, dtype=torch.uint8, device=GPU)
    graph = PreprocessGraph(preprocess, (torch.zeros(256, 256, device=GPU),), capture_on(GPU), enqueue_on(GPU).copy)
    graph.specialize((256, 256))
    return lambda: graph(image)


@pytest.mark.parametrize("make", [stage, all_in_one, function, preprocessing])
def test_a_graph_has_the_priority_of_the_launching_stream(make: Callable[[], Callable[[], object]]):
    """One graph is launched on streams of low and high priority while four low-priority streams occupy the GPU."""
    values = torch.randn(4096, 4096, device=GPU)
    others = [torch.cuda.Stream(GPU) for _ in range(4)]
    low, high = (torch.cuda.Stream(GPU, priority=priority) for priority in (0, -3))

    def ms(launch: Callable[[], object], stream: torch.cuda.Stream) -> float:
        for other in others:
            with torch.cuda.stream(other):
                for _ in range(60):
                    values @ values
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begin.record()
            launch()
            end.record()
        end.synchronize()
        filled = not all(other.query() for other in others)
        torch.cuda.synchronize(GPU)
        assert filled  # to the end
        return begin.elapsed_time(end)

    with torch.inference_mode():
        launch = make()
        ms(launch, low)
        times = [(ms(launch, low), ms(launch, high)) for _ in range(7)]
    on_low, on_high = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"{make.__name__}: {on_low:.2f} ms on the low stream, {on_high:.2f} ms on the high one")
    assert on_high < 0.5 * on_low


@partitioned
def test_a_graph_captured_on_a_share_runs_on_that_share():
    values = torch.randn(4096, 4096)

    class Product(torch.nn.Module):
        def forward(self, carried: Tensors) -> Tensors:
            return (carried[0] @ carried[0],)

    def fastest_ms(sms: int) -> float:
        with green_contexts.computing_on(GPU, sms):
            (graph,) = CudaGraph().prepare([Product()], (values,), GPU)
        times = []
        with (
            torch.inference_mode(),
            torch.cuda.stream(green_contexts.make_stream(GPU, sms)),
        ):  # another one of the share
            for _ in range(5):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                graph(graph.inputs)  # type: ignore[attr-defined]
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end))
        return min(times)

    whole, share = fastest_ms(0), fastest_ms(8)
    count = torch.cuda.get_device_properties(GPU).multi_processor_count
    assert share > whole * count / 8 / 3  # a third of what the SMs alone would make


@partitioned
def test_tiles_are_selected_on_the_share_that_the_dnn_runs_on(monkeypatch: pytest.MonkeyPatch):
    """Also after a DNN of the same shapes on the whole GPU: `tiles` is called for both numbers of SMs."""
    needs_compiler("Triton")
    from multi_dnn_ros.backends import triton_convolution

    asked: list[int] = []
    tiles = triton_convolution.tiles

    def watched(image: torch.Size, weight: torch.Size, result: torch.Size, processors: int) -> Sequence[object]:
        asked.append(processors)
        return tiles(image, weight, result, processors)

    monkeypatch.setattr(triton_convolution, "_chosen", {})
    monkeypatch.setattr(triton_convolution, "tiles", watched)
    layers = torch.nn.Sequential(torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.ReLU()).eval()
    example = (torch.zeros(1, 64, 28, 28),)
    count = torch.cuda.get_device_properties(GPU).multi_processor_count
    for sms in (0, 16, 0):
        backend = choose_backend("cuda_graph", GPU, "fp16", dnn="a")
        green_contexts.with_own_cudnn_plans(
            sms, partial(_prepared_on, sms, backend, cut_module(layers, example, 1), example)
        )
    assert asked == [count, 16]
    keys = {key[-1]: tile for key, tile in triton_convolution._chosen.items()}
    assert keys.keys() == {count, 16}


def _prepared_on(sms: int, backend: Backend, stages: Sequence[torch.nn.Module], example: Tensors) -> None:
    with green_contexts.computing_on(GPU, sms):
        backend.prepare(stages, example, GPU)
