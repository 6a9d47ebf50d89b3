"""Shares of a GPU's SMs: allowed sizes, and the assignment of streams. That kernels stay on a share: test/gpu."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import pytest
import torch

from multi_dnn_ros.backends import green_contexts
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
    monkeypatch.setattr(green_contexts, "supported", lambda: False)
    assert "has no CUDA green contexts; required: 2.11 or newer" in green_contexts.sms_problem(GPU, 16)


@pytest.fixture
def contexts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fakes PyTorch's green contexts; the numbers of SMs of those that were made."""
    made: list[int] = []
    handles = itertools.count(1)

    def create(sms: int, index: int) -> SimpleNamespace:
        made.append(sms)
        return SimpleNamespace(Stream=lambda: SimpleNamespace(cuda_stream=next(handles)))

    monkeypatch.setattr("torch.cuda.green_contexts.GreenContext", SimpleNamespace(create=create))
    monkeypatch.setattr(green_contexts, "_shares", {})
    monkeypatch.setattr(green_contexts, "_sms_of", {})
    return made


def test_streams_of_one_size_belong_to_one_share_and_are_assigned_round_robin(contexts: list[int]) -> None:
    streams = [green_contexts.make_stream(CPU, 16) for _ in range(40)]
    assert len({id(stream) for stream in streams}) == 16
    assert streams[0] is streams[16]
    green_contexts.make_stream(CPU, 8)
    assert contexts == [16, 8]


def test_work_for_a_share_runs_in_a_thread_of_its_own() -> None:
    def fail() -> None:
        raise ValueError("no such stream")

    assert with_own_cudnn_plans(0, threading.get_ident) == threading.get_ident()
    assert with_own_cudnn_plans(8, threading.get_ident) != threading.get_ident()
    for sms in (0, 8):
        with pytest.raises(ValueError, match="no such stream"):
            with_own_cudnn_plans(sms, fail)


def test_further_streams_have_the_share_of_a_stream_and_are_all_different(contexts: list[int]) -> None:
    stream = green_contexts.make_stream(CPU, 16)
    further = green_contexts.further_streams(stream, CPU, 15)
    assert sorted(each.cuda_stream for each in (stream, *further)) == list(range(1, 17))
    with pytest.raises(RuntimeError, match="cpu provides 15 further streams; required: 16"):
        green_contexts.further_streams(stream, CPU, 16)
    assert contexts == [16]
