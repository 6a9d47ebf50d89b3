"""Which graphs wait for which: the levels of those under way, on a fake GPU. On a real one: test/gpu/engine."""

from __future__ import annotations

import gc
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multi_dnn_ros.backends import gates as gates_module
from multi_dnn_ros.backends.gates import Gate, Gates, gates_of, new_gate

CPU = torch.device("cpu")


class FakeStreams:
    """Streams by handle: of handle n the priority is -(n % 10)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 100
        self.kernels: list[dict[str, Any]] = []
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: self.current, raising=False)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(priority=-(self.current % 10)))
        monkeypatch.setattr(torch.cuda, "_compile_kernel", self._compile, raising=False)
        gates_of.cache_clear()

    def _compile(self, source: str, name: str) -> Any:
        assert name in source
        return lambda **launch: self.kernels.append(launch)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> FakeStreams:
    return FakeStreams(monkeypatch)


def test_a_graph_under_way_is_seen_by_its_level_and_waits_for_higher_ones(streams: FakeStreams) -> None:
    gates = Gates(CPU)
    low, high = Gate(gates), Gate(gates)
    assert not low.enter()  # nobody is higher yet
    low.leave()
    streams.current = 102
    assert not high.enter()
    assert sorted(gates.levels.tolist())[-2:] == [0, 2]
    streams.current = 100
    assert low.enter()
    assert sorted(gates.levels.tolist())[-2:] == [0, 2]  # what nobody waits for is not marked
    low.leave()
    high.leave()
    assert not gates.levels.any()
    low.wait()
    (launch,) = streams.kernels
    assert launch["block"] == (32, 1, 1)
    assert launch["args"][0] is gates.levels
    assert launch["args"][1].item() == 0


def test_the_level_follows_the_stream(streams: FakeStreams) -> None:
    """As when a DNN's priority changes while it serves."""
    gates = Gates(CPU)
    one, other = Gate(gates), Gate(gates)
    streams.current = 101
    assert not one.enter()
    one.leave()
    streams.current = 103
    assert not other.enter()
    other.leave()
    streams.current = 101
    assert one.enter()
    streams.current = 200
    assert other.enter()
    streams.current = 101
    assert not one.enter()
    assert gates.highest == 1


def test_a_graph_that_is_gone_is_waited_for_no_more(streams: FakeStreams) -> None:
    gates = Gates(CPU)
    low, high = Gate(gates), Gate(gates)
    streams.current = 101
    high.enter()
    streams.current = 100
    assert low.enter()
    del high
    gc.collect()
    assert not low.enter()
    kept = [Gate(gates) for _ in range(len(gates.levels) - 1)]
    with pytest.raises(RuntimeError, match="64 graphs have gates already"):
        Gate(gates)
    assert len(kept) == 63


def test_without_the_kernel_there_are_none_and_the_log_says_so(
    streams: FakeStreams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(source: str, name: str) -> None:
        raise RuntimeError("nvrtc: error: invalid value for --gpu-architecture")

    monkeypatch.setattr(torch.cuda, "_compile_kernel", refuse)
    monkeypatch.setattr(gates_module.torch.cuda, "device", lambda device: gates_module.torch.inference_mode(False))
    with caplog.at_level(logging.WARNING):
        assert new_gate(CPU) is None
        assert new_gate(CPU) is None
    assert len(caplog.records) == 1
    assert "nvrtc: error" in caplog.text


def test_they_can_be_left_out(streams: FakeStreams, monkeypatch: pytest.MonkeyPatch) -> None:
    gates = Gates(CPU)
    high = Gate(gates)
    monkeypatch.setattr(Gates, "enabled", False)
    streams.current = 101
    assert not high.enter()
    high.leave()
    assert not gates.levels.any()
