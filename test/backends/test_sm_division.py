"""Shares of a GPU's SMs that do not overlap, with a fake driver that divides numbered SMs as CUDA does."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from multi_dnn_ros.backends import cuda_driver, sm_division

GPU = torch.device("cuda", 0)
_INVALID_VALUE, _INVALID_CONFIGURATION = 1, 914


class FakeDriver:
    """Has `count` SMs. A resource is a list of them, stored by the address of its buffer, and whether it may be split.

    As in CUDA, the rest of a split may not be split again; the SMs of a green context may.
    """

    def __init__(self, count: int) -> None:
        self.whole = list(range(count))
        self.resources: dict[int, tuple[list[int], bool]] = {}
        self.contexts: dict[int, list[int]] = {}
        self.streams: dict[int, list[int]] = {}
        self._handles = iter(range(1, 10_000))

    def cuDeviceGet(self, number: Any, index: int) -> int:
        return 0

    def cuDeviceGetDevResource(self, number: Any, resource: Any, kind: int) -> int:
        self.resources[ctypes.addressof(resource)] = (self.whole, True)
        return 0

    def cuDevSmResourceSplitByCount(
        self, part: Any, groups: Any, resource: Any, rest: Any, flags: int, sms: int
    ) -> int:
        have, divisible = self.resources[ctypes.addressof(resource)]
        if not divisible:
            return _INVALID_VALUE
        if sms > len(have):
            return _INVALID_CONFIGURATION
        self.resources[ctypes.addressof(part)] = (have[:sms], True)
        if rest is not None:
            self.resources[ctypes.addressof(rest)] = (have[sms:], False)
        return 0

    def cuDevResourceGenerateDesc(self, description: Any, resource: Any, count: int) -> int:
        sms, _ = self.resources[ctypes.addressof(resource)]
        if not sms:
            return _INVALID_VALUE
        description._obj.value = next(self._handles)
        self.contexts[description._obj.value] = sms
        return 0

    def cuGreenCtxCreate(self, context: Any, description: Any, number: Any, flags: int) -> int:
        context._obj.value = next(self._handles)
        self.contexts[context._obj.value] = self.contexts[description.value]
        return 0

    def cuGreenCtxGetDevResource(self, context: Any, resource: Any, kind: int) -> int:
        self.resources[ctypes.addressof(resource)] = (self.contexts[context.value], True)
        return 0

    def cuGreenCtxStreamCreate(self, stream: Any, context: Any, flags: int, priority: int) -> int:
        stream._obj.value = next(self._handles)
        self.streams[stream._obj.value] = self.contexts[context.value]
        return 0

    def cuGetErrorString(self, result: int, text: Any) -> int:
        text._obj.value = b"invalid argument"
        return 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver(32)
    monkeypatch.setattr(sm_division, "driver", lambda: driver)
    monkeypatch.setattr(cuda_driver, "driver", lambda: driver)
    monkeypatch.setattr(torch, "zeros", lambda *sizes, device: None)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: handle)
    return driver


def sms_of(fake: FakeDriver, division: sm_division.SmDivision, count: int) -> set[int]:
    """The SMs of a new share, on which all of its streams must be."""
    (sms,) = {tuple(fake.streams[stream]) for stream in division.streams(count, 3)}  # type: ignore[index]
    assert len(sms) == count
    return set(sms)


def test_shares_do_not_overlap_as_long_as_the_gpu_has_enough_sms(
    fake: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    division = sm_division.SmDivision(GPU)
    shares = [sms_of(fake, division, count) for count in (16, 8, 8)]
    assert set.union(*shares) == set(range(32))
    assert not caplog.records
    assert sms_of(fake, division, 16)  # none is left
    assert "too few unused SMs for a share of 16" in caplog.text


def test_a_share_that_is_larger_than_what_is_left_overlaps_with_a_warning(
    fake: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    division = sm_division.SmDivision(GPU)
    first = sms_of(fake, division, 24)
    assert sms_of(fake, division, 16) & first
    assert "overlaps" in caplog.text
    assert not sms_of(fake, division, 8) & first  # the unused SMs are still there


def test_more_sms_than_the_gpu_has_are_an_error(fake: FakeDriver) -> None:
    with pytest.raises(RuntimeError, match="invalid argument"):
        sm_division.SmDivision(GPU).streams(40, 1)
