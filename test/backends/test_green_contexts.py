"""Shares of a GPU's SMs: allowed sizes, and the assignment of streams. That kernels stay on a share: test/gpu."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from multi_dnn_ros.backends import green_contexts
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
