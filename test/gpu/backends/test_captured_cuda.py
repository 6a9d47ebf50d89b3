"""Captured graphs: networks, gates, concurrency, priority, shares of the SMs. CPU twins: test/backends, test/engine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gpu_stages import EXAMPLE, GPU, Prepared, fire, needs, on_gpu, through

from multi_dnn_ros.backends import Shared, Tensors, green_contexts
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.capture import capture_on
from multi_dnn_ros.backends.captured_network import Captured, CapturedNetwork
from multi_dnn_ros.backends.cuda_driver import enqueue_on
from multi_dnn_ros.backends.cuda_graph import CudaGraph
from multi_dnn_ros.backends.gates import Gate
from multi_dnn_ros.backends.gpu_time import gpu_ms
from multi_dnn_ros.backends.preprocess_graph import PreprocessGraph
from multi_dnn_ros.models.cut import cut_module
from multi_dnn_ros.serving.choices import choose_backend
from multi_dnn_ros.vision.preprocess import Preprocess
from multi_dnn_ros.vision.preprocess_gpu import TensorPreprocess

partitioned = pytest.mark.skipif(not green_contexts.supported(), reason="needs a PyTorch with green contexts")


def whole_network(stages: Sequence[torch.nn.Module], inputs: Tensors, **state: Any) -> CapturedNetwork:
    (network,) = CudaGraph(single_launch=True).prepare(stages, inputs, GPU, Shared(**state))
    assert isinstance(network, CapturedNetwork)
    return network


@pytest.mark.parametrize("backend", ["cuda_graph", "inductor"])
@pytest.mark.parametrize("precision", ["auto", "fp16"])
def test_a_whole_network_in_one_launch_computes_the_same(backend: str, precision: str):
    needs(precision, backend)
    module, inputs = fire(), noise_like(EXAMPLE)
    with torch.inference_mode():  # before the stages, which share the weights, are moved
        expected = (module(*inputs),)
    made = choose_backend(backend, GPU, precision, dnn="a", single_launch=True)
    (network,) = made.prepare(cut_module(module, EXAMPLE, 3, fold_batch_norm=True), EXAMPLE, GPU)
    assert isinstance(network, CapturedNetwork)
    assert network.segments == 3
    with torch.inference_mode():
        results = network(on_gpu(inputs))
        before = torch.cuda.memory_stats(GPU)["allocation.all.allocated"]
        assert network(network.inputs)[0] is results[0]
        assert torch.cuda.memory_stats(GPU)["allocation.all.allocated"] == before
        check_agreement(tuple(tensor.cpu() for tensor in results), expected, 2e-2)


def test_a_closed_gate_holds_a_network_back_and_an_open_one_costs_next_to_nothing():
    gate = Gate()
    layers = [SmallProducts() for _ in range(8)]
    inputs = (torch.zeros(1, 256, 256),)
    gated, plain = whole_network(layers, inputs, gate=gate), whole_network(layers, inputs)
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream(GPU)):
        gate.is_open = False
        ended = torch.cuda.Event()
        gated.launch(gated.inputs)
        ended.record()
        time.sleep(0.05)
        assert not ended.query()
        gate.is_open = True
        ended.synchronize()
        times = [(gpu_ms(lambda: gated.launch(gated.inputs)), gpu_ms(lambda: plain.launch(plain.inputs)))
                 for _ in range(5)]  # fmt: skip
    with_gates, without = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"{with_gates:.4f} ms with eight open gates, {without:.4f} ms without any")
    assert with_gates < 1.1 * without + 0.02


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


def captured_preprocessing(preprocess: Callable[[torch.Tensor], Tensors], destination: Tensors) -> PreprocessGraph:
    enqueue = enqueue_on(GPU)
    return PreprocessGraph(preprocess, destination, capture_on(GPU), enqueue.copy, enqueue.copy_from_host)


@pytest.mark.parametrize("fit", ["stretch", "letterbox"])
def test_captured_preprocessing_computes_the_same_and_allocates_nothing(
    fit: str, prepared: Callable[[str, str], Prepared]
):
    preprocess = TensorPreprocess(Preprocess(128, 96, fit=fit, bgr=True, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3)))
    first = prepared("cuda_graph", "auto").stages[0]
    assert isinstance(first, Captured)
    graph = captured_preprocessing(preprocess, first.inputs)
    rng = np.random.default_rng(0)
    images = [torch.from_numpy(rng.integers(0, 256, (240, 424, 3), np.uint8)).to(GPU) for _ in range(3)]
    graph.specialize((240, 424))
    with torch.inference_mode():
        before = torch.cuda.memory_stats(GPU)["allocation.all.allocated"]
        for image in images:
            (result,) = graph(image)
            assert result is first.inputs[0]
            assert graph.from_host(image.cpu().numpy()) is first.inputs
        assert torch.cuda.memory_stats(GPU)["allocation.all.allocated"] == before
        check_agreement((result,), preprocess(images[-1]), 1e-4)


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
    network = whole_network([SmallProducts(), SmallProducts()], (torch.zeros(1, 256, 256),), gate=Gate())
    return lambda: network.launch(network.inputs)


@pytest.mark.parametrize("make", [stage, all_in_one])
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
