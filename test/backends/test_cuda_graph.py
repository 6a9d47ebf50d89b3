"""Captured stages, with a fake capture that calls the stage. On a GPU: test/gpu/backends/test_captured_cuda.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from multi_dnn_ros.backends import Shared, Stage, Tensors, cuda_graph
from multi_dnn_ros.backends.cuda_graph import Captured, CudaGraph, _CapturedChain

STREAM = SimpleNamespace(device=torch.device("cpu"), wait_stream=lambda stream: None)


def fake_capture(run: Callable[[], None], pool: object, stream: object) -> SimpleNamespace:
    run()
    return SimpleNamespace(replay=run)


@pytest.fixture(autouse=True)
def _capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graph, "capture_graph", fake_capture)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: STREAM)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)


def captured(*stages: Stage) -> list[Captured]:
    ready: list[Captured] = []
    carried: Tensors = (torch.zeros(4),)
    for stage in stages:
        before = ready[-1].outputs if ready else None
        ready.append(Captured(stage, carried, before, None, STREAM, 1e-6))  # type: ignore[arg-type]
        carried = ready[-1](carried)
    return ready


def test_an_output_that_is_a_constant_of_the_dnn_keeps_its_value() -> None:
    """Such as the anchors that a detector returns with its boxes."""
    anchors = torch.arange(4.0)
    stages = captured(lambda carried: (carried[0] + 1.0,), lambda carried: (carried[0] * 2.0, anchors))
    whole = _CapturedChain(stages, 1e-6)
    results, constant = whole((torch.ones(4),))
    assert results.tolist() == [4.0] * 4
    assert constant.tolist() == anchors.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_chain_that_does_not_write_the_results_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = captured(lambda carried: (carried[0] + 1.0,), lambda carried: (carried[0] * 2.0,))
    for stage in stages:  # as a graph does: every launch writes the same memory
        monkeypatch.setattr(stage, "_graph", SimpleNamespace(replay=lambda stage=stage: write(stage)))
    monkeypatch.setattr(cuda_graph, "capture_graph", lambda run, pool, stream: SimpleNamespace(replay=lambda: None))
    with pytest.raises(ValueError, match="result 0 is off by"):
        _CapturedChain(stages, 1e-6)


def write(stage: Captured) -> None:
    for target, result in zip(stage.outputs, stage.stage(stage.inputs), strict=True):
        target.copy_(result)


def test_branches_that_fail_their_check_leave_the_inputs_of_the_job_unchanged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = itertools.count()

    def in_order(carried: Tensors) -> Tensors:
        return (carried[0] * 2.0,)

    def parallel(carried: Tensors) -> Tensors:  # another result in every call, within the tolerance
        return (carried[0] * 2.0 + 1e-4 * next(calls),)

    monkeypatch.setattr(CudaGraph, "_with_branches", lambda self, title, stage, source, carried, stream: parallel)
    before = (torch.ones(4),)
    job = CudaGraph()._capture(1, in_order, in_order, before, before, Shared(stream=STREAM))
    assert "its branches fail: result 0 differs between two runs with the same input" in caplog.text
    assert job.stage is in_order
    assert before[0].tolist() == [1.0] * 4
