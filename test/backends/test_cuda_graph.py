"""Captured stages, with a fake capture that calls the stage. On a GPU: test/gpu/backends/test_captured_cuda.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_branched_graph import EXAMPLE, FakeStreams, blocks

from multi_dnn_ros.backends import Shared, Stage, Tensors, captured_network, cuda_graph
from multi_dnn_ros.backends.agreement import check_agreement, noise_like
from multi_dnn_ros.backends.captured_network import CapturedNetwork, Packing
from multi_dnn_ros.backends.cuda_graph import CudaGraph

STREAM = SimpleNamespace(device=torch.device("cpu"), wait_stream=lambda stream: None)


def fake_capture(run: Callable[[], None], pool: object, stream: object) -> SimpleNamespace:
    run()
    return SimpleNamespace(replay=run)


@pytest.fixture(autouse=True)
def _capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_network, "capture_graph", fake_capture)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: STREAM)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)


def whole(*stages: Stage, **options: Any) -> CapturedNetwork:
    return CapturedNetwork(stages, stages, (torch.zeros(1, 4),), None, STREAM, 1e-6, **options)  # type: ignore[arg-type]


def test_an_output_that_is_a_constant_of_the_dnn_keeps_its_value() -> None:
    """Such as the anchors that a detector returns with its boxes."""
    anchors = torch.arange(4.0)[None]
    network = whole(lambda carried: (carried[0] + 1.0,), lambda carried: (carried[0] * 2.0, anchors))
    (row,) = network.unpack(network.launch((torch.ones(1, 4),)).clone())
    assert [tensor.tolist() for tensor in row] == [[[4.0] * 4], [[0.0, 1.0, 2.0, 3.0]]]


def test_a_graph_that_does_not_write_the_results_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(run: Callable[[], None], pool: object, stream: object) -> SimpleNamespace:
        run()
        return SimpleNamespace(replay=lambda: None)

    monkeypatch.setattr(captured_network, "capture_graph", capture)
    with pytest.raises(ValueError, match="result 0 is off by"):
        whole(lambda carried: (carried[0] + 1.0,), lambda carried: (carried[0] * 2.0,))


def test_what_cannot_be_captured_is_reduced_after_the_launch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = itertools.count()

    def reduce(outputs: Tensors) -> Tensors:
        if next(calls) == 0:
            raise RuntimeError("operation not permitted when stream is capturing")
        return (outputs[0].sum(),)

    network = whole(lambda carried: (carried[0] + 1.0,), reduce=reduce)
    assert "decoding on the device is not captured" in caplog.text
    assert float(network.unpack(network.launch((torch.ones(1, 4),)))[0][0]) == 8.0


arrays = st.sampled_from([torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool])


@given(st.lists(st.tuples(arrays, st.lists(st.integers(0, 4), max_size=3)), max_size=5), st.integers(1, 3))
def test_packed_outputs_come_out_as_they_were(kinds: list[tuple[torch.dtype, list[int]]], batch: int) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = tuple(torch.randint(0, 2, (batch, *shape), generator=generator).to(dtype) for dtype, shape in kinds)
    packing = Packing(batch, None)
    packed = packing.pack(outputs) if outputs else None
    rows = [] if packed is None else packing.unpack(packed.clone())
    for number, row in enumerate(rows):
        for found, tensor in zip(row, outputs, strict=True):
            assert found.dtype is tensor.dtype
            assert torch.equal(found, tensor[number : number + 1])


def test_branches_that_fail_their_check_leave_the_inputs_of_the_job_unchanged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = itertools.count()

    def in_order(carried: Tensors) -> Tensors:
        return (carried[0] * 2.0,)

    def parallel(carried: Tensors) -> Tensors:  # another result in every call, within the tolerance
        return (carried[0] * 2.0 + 1e-4 * next(calls),)

    monkeypatch.setattr(CudaGraph, "_with_branches", lambda self, index, stage, source, carried, stream: parallel)
    before = (torch.ones(4),)
    job = CudaGraph()._capture(1, in_order, in_order, before, before, Shared(stream=STREAM))
    assert "its branches fail: result 0 differs between two runs with the same input" in caplog.text
    assert job.stages == (in_order,)
    assert before[0].tolist() == [1.0] * 4


@pytest.mark.parametrize("with_compiler", [True, False])
def test_a_compiled_stage_gets_branches_of_compiled_segments_from_the_module_that_it_was_compiled_from(
    with_compiler: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cuda_graph, "CudaStreams", lambda stream, count: FakeStreams())
    source = blocks()
    compiled: list[Stage] = []

    def compile_segment(segment: Stage, inputs: Tensors) -> Stage:
        compiled.append(segment)
        return segment

    def serial(carried: Tensors) -> Tensors:
        results: Tensors = source(carried)
        return results

    backend = CudaGraph(branches=2, compile_segment=compile_segment if with_compiler else None)
    image = noise_like(EXAMPLE)
    with torch.inference_mode():
        job = backend._capture(0, serial, source, image, None, Shared(stream=STREAM))
        check_agreement(job(image), source(image), 1e-6)
    assert not any(record.name.startswith("multi_dnn_ros") for record in caplog.records)
    assert job.streams == (2 if with_compiler else 1)
    assert (len(compiled) > 2) == with_compiler
    assert (job.stages == (serial,)) != with_compiler


def test_a_network_whose_branches_fail_is_captured_on_one_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A job and then the whole network: the graph must have the results of the stages, with a gate before each."""

    class Times(torch.nn.Module):
        def forward(self, carried: Tensors) -> Tensors:
            return (carried[0] * 2.0,)

    class Kernels:
        def prepare(self, stages: Any, inputs: Tensors, device: Any, shared: Any) -> tuple[Stage, ...]:
            return tuple(stages)

    monkeypatch.setattr(
        CudaGraph, "_with_branches", lambda self, index, *rest: lambda carried: (carried[0] * 2.0 + 1.0,)
    )
    device = SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, *device: tensor)
    for single_launch in (True, False):
        gate = SimpleNamespace(waits=0)
        gate.wait = lambda gate=gate: setattr(gate, "waits", gate.waits + 1)
        backend = CudaGraph(kernels=Kernels(), branches=2, single_launch=single_launch)  # type: ignore[arg-type]
        shared = Shared(pool=0, stream=STREAM, gate=gate)  # type: ignore[arg-type]
        stages = backend.prepare([Times(), Times()], (torch.ones(2, 3),), device, shared)  # type: ignore[arg-type]
        assert "its branches fail: result 0 is off by" in caplog.text
        assert len(stages) == (1 if single_launch else 2)
        assert (gate.waits > 0) == single_launch
        carried: Tensors = (torch.full((2, 3), 3.0),)
        with torch.inference_mode():
            for stage in stages:
                carried = stage(carried)
            assert torch.equal(carried[0], torch.full((2, 3), 12.0))
        caplog.clear()
