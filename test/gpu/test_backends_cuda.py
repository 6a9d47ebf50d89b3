"""Precision, Inductor, captured preprocessing, priorities and failures on a GPU. CPU twins: test/backends, engine."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from multi_dnn_ros.backends import Tensors, green_contexts
from multi_dnn_ros.backends.agreement import check_agreement, probe
from multi_dnn_ros.backends.capture import CapturedFunction, capture_on
from multi_dnn_ros.backends.cuda_graph import Captured, CudaGraph, in_one_launch
from multi_dnn_ros.backends.inductor import missing_compiler
from multi_dnn_ros.backends.precision import PRECISIONS, allowed_precisions, float32_products
from multi_dnn_ros.backends.preprocess_graph import PreprocessGraph
from multi_dnn_ros.engine import DropReason, Engine, Frame, Result
from multi_dnn_ros.flat_parameters import to_config
from multi_dnn_ros.models.balance import balance
from multi_dnn_ros.models.cut import cut
from multi_dnn_ros.models.preprocess import Preprocess
from multi_dnn_ros.pipeline import ConfigError, build, choose_backend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
GPU = torch.device("cuda", 0)
WAIT = 60.0
partitioned = pytest.mark.skipif(not green_contexts.supported(), reason="needs a PyTorch with green contexts")
EXAMPLE = (torch.zeros(1, 3, 96, 128),)
CAPTURED = {"capture_preprocess": True}


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


@pytest.mark.parametrize("precision", ["auto", "fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("backend", ["cuda_graph", "inductor"])
def test_every_precision_agrees_with_the_cpu_and_every_job_is_captured(
    backend: str, precision: str, caplog: pytest.LogCaptureFixture
):
    needs(precision, backend)
    module = network()
    settings = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    lines: list[str] = []
    prepared = choose_backend(backend, GPU, precision, dnn="a", progress=lines.append).prepare(
        cut(module, EXAMPLE, 4, fold_batch_norm=True), EXAMPLE, GPU
    )
    assert settings == (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    assert not [r.getMessage() for r in caplog.records if r.name.startswith("multi_dnn_ros")]
    assert all(isinstance(stage, Captured) for stage in prepared)
    assert len(lines) == (2 * len(prepared) if backend == "inductor" else 0)
    inputs = probe(EXAMPLE)
    with torch.inference_mode():
        expected = (module.cpu()(*inputs),)
    # Jobs are held to the tolerance one by one; a whole chain of four may be off by as many times that.
    check_agreement(through(prepared, on_gpu(inputs)), expected, 4 * PRECISIONS[precision].tolerance(GPU))


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_decided_when_a_graph_is_captured_and_not_when_it_is_launched(tf32: bool):
    """fp32 is exact to float32, tf32 is not, whatever the process is set to afterwards."""
    needs("tf32", "cuda_graph")
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(512, 512, generator=generator)
    linear = torch.nn.Linear(512, 512, bias=False)
    linear.weight.data = weight

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, carried: Tensors) -> Tensors:
            return (self.linear(carried[0]),)

    values = torch.randn(64, 512, generator=generator)
    prepared = choose_backend("cuda_graph", GPU, "tf32" if tf32 else "fp32").prepare([Product()], (values,), GPU)
    exact = values.double() @ weight.double().T
    with float32_products(not tf32):
        (result,) = through(prepared, on_gpu((values,)))
    error = float((result.double() - exact).abs().max() / exact.abs().max())
    assert (error > 1e-5) == tf32


@pytest.mark.parametrize("backend", ["cuda_graph", "inductor"])
@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
def test_all_jobs_in_one_launch_give_the_same_in_the_same_place(backend: str, precision: str):
    needs(precision, backend)
    stages = choose_backend(backend, GPU, precision, dnn="a").prepare(cut(network(), EXAMPLE, 3), EXAMPLE, GPU)
    whole = in_one_launch({1: stages})[1]
    inputs = on_gpu(probe(EXAMPLE))
    with torch.inference_mode():
        expected = through(stages, inputs)
        before = torch.cuda.memory_stats(GPU)["allocation.all.allocated"]
        results = whole(inputs)
        assert torch.cuda.memory_stats(GPU)["allocation.all.allocated"] == before
        assert all(result is place for result, place in zip(results, stages[-1].outputs, strict=True))  # type: ignore[attr-defined]
        check_agreement(results, expected, 1e-5)
    assert in_one_launch({1: CudaGraph().prepare(cut(network(), EXAMPLE, 1), EXAMPLE, GPU)}) == {}


def test_dnns_captured_on_one_stream_may_run_at_once():
    """Those on a share of the SMs are captured so. Products of few rows and much depth need cuBLAS's workspace."""

    class Products(torch.nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(8192, 8192, bias=False) for _ in range(2)))

        def forward(self, carried: Tensors) -> Tensors:
            return (self.layers(carried[0]),)

    values = torch.randn(98, 8192, generator=torch.Generator().manual_seed(0)).half()
    with torch.cuda.stream(torch.cuda.Stream(GPU)):
        dnns = [CudaGraph().prepare([Products(seed).half().eval()], (values,), GPU)[0] for seed in range(4)]
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


def test_fp16_convolutions_lie_channels_last(caplog: pytest.LogCaptureFixture):
    backend = choose_backend("cuda_graph", GPU, "fp16", dnn="a")
    prepared = backend.prepare(cut(network(), EXAMPLE, 3, fold_batch_norm=True), EXAMPLE, GPU)
    between = prepared[0].outputs  # type: ignore[attr-defined]
    assert {tensor.dtype for tensor in between} == {torch.float16}
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in between if tensor.ndim == 4)
    (output,) = through(prepared, on_gpu(EXAMPLE))
    assert output.dtype is torch.float32


def test_compiled_kernels_are_found_on_disk_by_the_next_process(tmp_path):
    """A second process compiles nothing: it hits Inductor's cache for each job."""
    needs("fp16", "inductor")
    script = tmp_path / "prepare.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, torch, torchvision
            from torch._dynamo.utils import counters
            from multi_dnn_ros.models.cut import cut
            from multi_dnn_ros.pipeline import choose_backend
            device, example = torch.device("cuda", 0), (torch.zeros(1, 3, 64, 64),)
            torch.manual_seed(0)
            module = torchvision.models.resnet18(weights=None).eval()
            choose_backend("inductor", device, sys.argv[1]).prepare(cut(module, example, 2), example, device)
            print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
            """
        )
    )
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}

    def run(precision: str) -> str:
        done = subprocess.run(
            [sys.executable, str(script), precision],
            env={**os.environ, **environment}, capture_output=True, text=True, timeout=280, check=True,
        )  # fmt: skip
        return done.stdout.strip().splitlines()[-1]

    assert run("fp16") == "0 2"
    assert run("fp16") == "2 0"
    assert run("auto") == "0 2"


@pytest.mark.parametrize("fit", ["stretch", "letterbox"])
def test_captured_preprocessing_computes_the_same_and_allocates_nothing(fit: str):
    preprocess = Preprocess(128, 96, fit=fit, bgr=True, mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.3))
    stages = CudaGraph().prepare(cut(network(), EXAMPLE, 2), EXAMPLE, GPU)
    first = stages[0]
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


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        CAPTURED,
        {"precision": "fp16", **CAPTURED},
        pytest.param({"sms": 16, **CAPTURED}, marks=partitioned),
        pytest.param({"sms": 8, "backend": "eager"}, marks=partitioned),
    ],
)
def test_our_dnns_give_the_cpus_results_through_the_engine(parameters: dict):
    """Frame by frame at full speed, so that each is preprocessed while the one before is on the GPU."""

    def answers(device: str, extra: dict) -> dict[tuple[str, int], Result]:
        flat = {"device": device, "dnns": ["lane", "object"], "dnn.lane.priority": 2}
        flat |= {f"dnn.{dnn}.{name}": value for dnn in ("lane", "object") for name, value in extra.items()}
        pipeline = build(to_config(flat))
        tasks = [_raw(task) for task in pipeline.tasks]
        results: dict[tuple[str, int], Result] = {}
        engine = Engine(
            tasks,
            workers=2,
            policy="priority",
            device=pipeline.device,
            on_result=lambda r: results.__setitem__((r.dnn, r.frame.stamp_ns), r.output),
        )
        engine.start()
        rng = np.random.default_rng(0)
        for number in range(30):
            height, width = ((240, 320), (360, 480))[number % 2]
            image = rng.integers(0, 256, (height, width, 3), np.uint8)
            assert engine.submit(Frame("front", number, lambda image=image: image), WAIT)
        assert engine.wait_idle(WAIT)
        assert engine.stop(WAIT) == []
        return results

    found, expected = answers("cuda:0", parameters), answers("cpu", {})
    assert found.keys() == expected.keys()
    assert len(found) == 60
    for key, right in expected.items():
        # The CPU resizes in grey levels, the GPU in float: half a level of 255, and the network on top.
        check_agreement(found[key], right, 0.1)


def _raw(task):
    return replace(task, decode=lambda outputs, size: tuple(output.clone() for output in outputs))


@pytest.mark.parametrize("parameters", [{}, CAPTURED])
def test_in_the_steady_state_nothing_is_allocated_on_gpu_or_host(parameters: dict):
    """Frames are uploaded through pinned memory; after the first ones, all of it is memory used before."""

    def allocations() -> tuple[int, int]:
        host = torch.cuda.host_memory_stats()
        return torch.cuda.memory_stats(GPU)["num_device_alloc"], host["num_host_alloc"]

    flat = {"device": "cuda:0", "dnns": ["lane"], **{f"dnn.lane.{name}": value for name, value in parameters.items()}}
    pipeline = build(to_config(flat))
    engine = Engine(pipeline.tasks, workers=2, device=pipeline.device, on_result=lambda r: None)
    engine.start()
    image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)

    def serve(frames: int) -> None:
        for number in range(frames):
            assert engine.submit(Frame("front", number, lambda: image), WAIT)
            assert engine.wait_idle(WAIT)

    serve(50)
    before = allocations()
    serve(200)
    after = allocations()
    assert engine.stop(WAIT) == []
    assert after == before


def test_memory_that_does_not_suffice_names_the_dnn_and_leaves_nothing():
    flat = {"device": "cuda:0", "dnns": ["lane", "object"]}
    build(to_config({**flat, "dnns": ["lane"]}))
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-5, GPU)
    try:
        with pytest.raises(ConfigError, match=r"dnn.\w+: builtin:\w+ does not fit into the memory of cuda:0") as raised:
            build(to_config(flat))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, GPU)
    assert "MiB are free" in str(raised.value)
    assert len(build(to_config(flat)).tasks) == 2


def test_a_dnn_is_rebuilt_while_others_serve():
    """Its stages raise as a failing GPU would; the new ones are captured between the other DNN's jobs."""
    pipeline = build(to_config({"device": "cuda:0", "dnns": ["lane", "object"]}))
    lane, other = pipeline.tasks

    def fails(carried: Tensors) -> Tensors:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    failures, drops, results = [], [], []
    engine = Engine(
        [replace(lane, stages=(fails,), in_one={}), other],
        workers=2,
        device=pipeline.device,
        on_result=results.append,
        on_drop=drops.append,
        on_failure=failures.append,
    )
    engine.start()
    image = np.random.default_rng(0).integers(0, 256, (240, 320, 3), np.uint8)
    for number in range(50):
        engine.submit(Frame("front", number, lambda: image), WAIT)
    assert engine.wait_idle(WAIT)
    statistics = engine.statistics()
    assert engine.stop(WAIT) == []
    assert [(f.dnn, f.rebuilt, f.disabled) for f in failures] == [("lane", True, False)]
    assert statistics.disabled == {}
    assert statistics.streams["object", "front"].published == 50
    assert {drop.reason for drop in drops} == {DropReason.DNN_ERROR}
    assert statistics.streams["lane", "front"].published >= 47


def test_rebuilding_gives_the_same_results():
    (task,) = build(to_config({"device": "cuda:0", "dnns": ["lane"]})).tasks
    assert task.rebuild is not None
    fresh = task.rebuild(nullcontext())
    with torch.inference_mode():
        image = torch.randint(0, 256, (240, 320, 3), dtype=torch.uint8, device=GPU)
        outputs = [through(each.stages, each.preprocess(image)) for each in (task, fresh)]
    check_agreement(outputs[0], outputs[1], 1e-2)


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


@partitioned
@pytest.mark.parametrize("sms", [9, 1000])
def test_a_share_that_the_gpu_cannot_give_is_refused_by_name(sms: int):
    count = torch.cuda.get_device_properties(GPU).multi_processor_count
    with pytest.raises(
        ConfigError, match=rf"parameter dnn\.lane\.sms is {sms}; allowed: .* \(cuda:0 has {count} SMs\)"
    ):
        build(to_config({"device": "cuda:0", "dnns": ["lane"], "dnn.lane.sms": sms}))


@pytest.mark.parametrize("precision", ["auto", "fp16"])
def test_a_detector_is_decoded_on_the_gpu_as_on_the_cpu(
    precision: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Candidates are chosen behind the last job, as one launch; the raw outputs stay on the GPU."""
    needs(precision, "cuda_graph")
    weights = tmp_path / "detector.pt"
    torch.manual_seed(0)
    detector = torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)
    # Scores far apart, as a trained one's are: which of equals are chosen is nobody's business.
    balance(detector.eval().backbone, torch.randn(1, 3, 320, 320))
    for head in detector.head.classification_head.module_list:
        torch.nn.init.normal_(head[-1].weight, std=12.0)
    torch.save(detector.state_dict(), weights)
    flat = {"device": "cuda:0", "dnns": ["object"], "dnn.object.precision": precision}
    flat |= {"dnn.object.weights": str(weights)}
    flat |= {"dnn.object.model": "torchvision:ssdlite320_mobilenet_v3_large", "dnn.object.score_threshold": 0.01}
    pipeline = build(to_config(flat))
    (task,) = pipeline.tasks
    assert isinstance(task.condense, CapturedFunction)
    assert not [r.getMessage() for r in caplog.records if r.name.startswith("multi_dnn_ros")]
    rng = np.random.default_rng(0)
    for _ in range(3):
        image = torch.from_numpy(rng.integers(0, 256, (240, 320, 3), np.uint8)).to(GPU)
        with torch.inference_mode():
            carried = task.preprocess(image)
            for stage in task.stages:
                carried = stage(carried)
            expected = pipeline.dnns["object"].decoder(tuple(tensor.cpu() for tensor in carried), (240, 320))
            found = task.decode(tuple(tensor.cpu() for tensor in task.condense(carried)), (240, 320))
        assert len(found.scores) == len(expected.scores) > 0
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
        np.testing.assert_allclose(found.boxes, expected.boxes, rtol=1e-3, atol=0.1)
