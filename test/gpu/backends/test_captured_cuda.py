"""Captured graphs: in one launch, at once, before others, on a share of the GPU. CPU twins: test/backends, engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from gpu_stages import EXAMPLE, GPU, Prepared, fire, needs, on_gpu, through

from multi_dnn_ros.backends import Tensors, green_contexts
from multi_dnn_ros.backends.agreement import check_agreement
from multi_dnn_ros.backends.capture import capture_on
from multi_dnn_ros.backends.cuda_graph import Captured, CudaGraph, in_one_launch
from multi_dnn_ros.backends.preprocess_graph import PreprocessGraph
from multi_dnn_ros.models.cut import cut
from multi_dnn_ros.models.preprocess import Preprocess

partitioned = pytest.mark.skipif(not green_contexts.supported(), reason="needs a PyTorch with green contexts")


@pytest.mark.parametrize("backend", ["cuda_graph", "inductor"])
@pytest.mark.parametrize("precision", ["auto", "fp16"])
def test_all_jobs_in_one_launch_give_the_same_in_the_same_place(
    backend: str, precision: str, prepared: Callable[[str, str], Prepared]
):
    needs(precision, backend)
    ready = prepared(backend, precision)
    stages, inputs = ready.stages, on_gpu(ready.inputs)
    whole = in_one_launch({1: stages})[1]
    with torch.inference_mode():
        expected = through(stages, inputs)
        for place in stages[-1].outputs:  # type: ignore[attr-defined]
            place.zero_()
        before = torch.cuda.memory_stats(GPU)["allocation.all.allocated"]
        results = whole(inputs)
        assert torch.cuda.memory_stats(GPU)["allocation.all.allocated"] == before
        assert all(result is place for result, place in zip(results, stages[-1].outputs, strict=True))  # type: ignore[attr-defined]
        check_agreement(results, expected, 1e-5)


def test_a_single_job_is_one_launch_already():
    assert in_one_launch({1: CudaGraph().prepare(cut(fire(), EXAMPLE, 1), EXAMPLE, GPU)}) == {}


def test_dnns_captured_on_one_stream_may_run_at_once():
    """Those on a share of the SMs are captured so. Products of few rows and much depth need cuBLAS's workspace."""

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
    graph = PreprocessGraph(preprocess, first.inputs, capture_on(GPU))
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


def test_a_more_important_stream_goes_first():
    """With the GPU full of a low stream's kernels, a graph captured on a high stream overtakes those not yet begun."""
    low, high = (torch.cuda.Stream(GPU, priority=priority) for priority in (0, -3))
    assert high.priority < low.priority
    values = torch.randn(4096, 4096, device=GPU)

    class Product(torch.nn.Module):
        def forward(self, carried: Tensors) -> Tensors:
            return (carried[0] @ carried[0],)

    (graph,) = CudaGraph(stream_priority=-3).prepare([Product()], (torch.randn(256, 256),), GPU)
    small = (torch.randn(256, 256, device=GPU),)
    torch.cuda.synchronize(GPU)
    done_low, done_high = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.inference_mode():
        with torch.cuda.stream(low):
            for _ in range(50):
                values @ values
            done_low.record(low)
        with torch.cuda.stream(high):
            graph(small)
            done_high.record(high)
    torch.cuda.synchronize(GPU)
    assert done_high.elapsed_time(done_low) > 0  # it came last and was through first


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
