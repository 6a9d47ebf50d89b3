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

from multi_dnn_ros.backends import Stage, Tensors, captured_network
from multi_dnn_ros.backends.captured_network import CapturedNetwork, Packing

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
