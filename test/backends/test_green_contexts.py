"""Shares of a GPU's SMs: allowed sizes, and the assignment of streams. That kernels stay on a share: test/gpu."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import pytest
import torch

from multi_dnn_ros.backends import green_contexts, sm_division
from multi_dnn_ros.backends.green_contexts import with_own_cudnn_plans
from multi_dnn_ros.serving.build import build
from multi_dnn_ros.serving.choices import ConfigError
from multi_dnn_ros.settings.flat_parameters import to_config

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("major", "count", "allowed", "refused", "message"),
    [
        (9, 132, (8, 16, 128), (4, 12, 136), "allowed: 8 to 128 in steps of 8 (cuda:0 has 132 SMs)"),
        (8, 16, (4, 6, 16), (2, 5, 18), "allowed: 4 to 16 in steps of 2 (cuda:0 has 16 SMs)"),
        (6, 20, (1, 3, 20), (21,), "allowed: 1 to 20 in steps of 1 (cuda:0 has 20 SMs)"),
    ],
)
def test_allowed_numbers_of_sms(
    monkeypatch: pytest.MonkeyPatch,
    major: int,
    count: int,
    allowed: tuple[int, ...],
    refused: tuple[int, ...],
    message: str,
) -> None:
    properties = SimpleNamespace(major=major, multi_processor_count=count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(green_contexts, "supported", lambda: True)
    assert [green_contexts.sms_problem(GPU, sms) for sms in allowed] == [""] * len(allowed)
    assert {green_contexts.sms_problem(GPU, sms) for sms in refused} == {message}


def test_an_impossible_share_is_an_error_that_names_the_dnn(monkeypatch: pytest.MonkeyPatch) -> None:
    config = to_config({"device": "cpu", "dnn.object.sms": 16})
    with pytest.raises(
        ConfigError, match=r"parameter dnn\.object\.sms is 16; only an NVIDIA GPU .* is cpu; 0: the whole"
    ):
        build(config)
    monkeypatch.setattr(sm_division, "available", lambda: False)
    assert "no CUDA green contexts" in green_contexts.sms_problem(GPU, 16)


def test_green_contexts_need_the_driver_and_not_those_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.green_contexts.SUPPORTED", False, raising=False)
    monkeypatch.setattr(sm_division, "available", lambda: True)
    for cuda, supported in (("12.6", True), (None, False)):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        assert green_contexts.supported() == supported


def test_streams_of_one_size_belong_to_one_share_and_are_assigned_round_robin(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    handles = itertools.count(1)

    def divide(sms: int, count: int) -> list[SimpleNamespace]:
        parts.append(sms)
        return [SimpleNamespace(cuda_stream=next(handles)) for _ in range(count)]

    divisions: list[torch.device] = []
    monkeypatch.setattr(
        green_contexts, "SmDivision", lambda device: divisions.append(device) or SimpleNamespace(streams=divide)
    )
    monkeypatch.setattr(green_contexts, "_divisions", {})
    monkeypatch.setattr(green_contexts, "_shares", {})
    monkeypatch.setattr(green_contexts, "_sms_of", {})
    streams = [green_contexts.make_stream(CPU, 16) for _ in range(40)]
    assert len({id(stream) for stream in streams}) == 16
    assert streams[0] is streams[16]
    green_contexts.make_stream(CPU, 8)
    assert parts == [16, 8]
    assert len(divisions) == 1  # both are parts of one division
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    for stream, sms in (
        (streams[3], 16),
        (green_contexts.make_stream(CPU, 8), 8),
        (SimpleNamespace(cuda_stream=0), 132),
    ):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, stream=stream: stream)
        assert green_contexts.current_sms(CPU) == sms


def test_work_for_a_share_runs_in_a_thread_of_its_own() -> None:
    def fail() -> None:
        raise ValueError("no such stream")

    assert with_own_cudnn_plans(0, threading.get_ident) == threading.get_ident()
    assert with_own_cudnn_plans(8, threading.get_ident) != threading.get_ident()
    for sms in (0, 8):
        with pytest.raises(ValueError, match="no such stream"):
            with_own_cudnn_plans(sms, fail)


def test_further_streams_have_the_share_of_a_stream_and_are_all_different(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = itertools.cycle(range(100, 116))
    requested: list[int] = []

    def make_stream(device: torch.device, sms: int = 0) -> SimpleNamespace:
        requested.append(sms)
        return SimpleNamespace(cuda_stream=next(handles))

    monkeypatch.setattr(green_contexts, "make_stream", make_stream)
    monkeypatch.setattr(green_contexts, "_sms_of", {101: 16})
    further = green_contexts.further_streams(SimpleNamespace(cuda_stream=101), GPU, 15)  # type: ignore[arg-type]
    assert sorted(stream.cuda_stream for stream in further) == [100, *range(102, 116)]
    assert set(requested) == {16}
    with pytest.raises(RuntimeError, match="cuda:0 provides 15 further streams; required: 16"):
        green_contexts.further_streams(SimpleNamespace(cuda_stream=101), GPU, 16)  # type: ignore[arg-type]


def test_another_thread_does_not_take_streams_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = itertools.count(1)
    threads: list[threading.Thread] = []

    class Stream:
        def __init__(self) -> None:
            self.handle = next(handles)

        @property
        def cuda_stream(self) -> int:
            if offering:
                threads.append(threading.Thread(target=green_contexts.make_stream, args=(CPU, 16)))
                threads[-1].start()
                threads[-1].join(0.005)  # it takes the next stream, unless it has to wait
            return self.handle

    offering = False
    division = SimpleNamespace(streams=lambda sms, count: [Stream() for _ in range(count)])
    monkeypatch.setattr(green_contexts, "_divisions", {0: division})
    monkeypatch.setattr(green_contexts, "_shares", {})
    monkeypatch.setattr(green_contexts, "_sms_of", {})
    stream = green_contexts.make_stream(CPU, 16)
    offering = True
    further = green_contexts.further_streams(stream, CPU, 15)
    offering = False
    for thread in threads:
        thread.join()
    assert sorted([stream.cuda_stream, *(each.cuda_stream for each in further)]) == list(range(1, 17))
