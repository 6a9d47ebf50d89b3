"""Shares of a GPU's SMs that do not overlap, with a fake driver that divides numbered SMs as CUDA does."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import pytest
import torch

from multi_dnn_ros.backends import cuda_driver, sm_division

GPU = torch.device("cuda", 0)
_INVALID_VALUE, _INVALID_TYPE, _INVALID_CONFIGURATION = 1, 914, 915


class FakeDriver:
    """Has `count` SMs. A resource is a list of them, stored by the address of its buffer, and whether it may be split.
    Its buffer holds their number. results: CUresults by function, instead of what the function would do.

    As in CUDA, the rest of a split may not be split again; the SMs of a green context may.
    """

    def __init__(self, count: int) -> None:
        self.whole = list(range(count))
        self.resources: dict[int, tuple[list[int], bool]] = {}
        self.contexts: dict[int, list[int]] = {}
        self.streams: dict[int, list[int]] = {}
        self.results: dict[str, int] = {}
        self.groups = 1  # that a split returns
        self.least = 1  # SMs of a context
        self.version = 12050
        self._handles = iter(range(1, 10_000))

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self.version
        return 0

    def _fill(self, resource: Any, sms: list[int], divisible: bool = True) -> int:
        self.resources[ctypes.addressof(resource)] = (sms, divisible)
        ctypes.c_uint.from_buffer(resource, 96).value = len(sms)
        return 0

    def cuDeviceGet(self, number: Any, index: int) -> int:
        return 0

    def cuDeviceGetDevResource(self, number: Any, resource: Any, kind: int) -> int:
        return self._fill(resource, self.whole)

    def cuDevSmResourceSplitByCount(
        self, part: Any, groups: Any, resource: Any, rest: Any, flags: int, sms: int
    ) -> int:
        have, divisible = self.resources[ctypes.addressof(resource)]
        if result := self.results.get("cuDevSmResourceSplitByCount"):
            return result
        if not divisible:
            return _INVALID_VALUE
        if sms > len(have):
            return _INVALID_CONFIGURATION
        groups._obj.value = self.groups
        self._fill(part, have[:sms])
        if rest is not None:
            self._fill(rest, have[sms:], False)
        return 0

    def cuDevResourceGenerateDesc(self, description: Any, resource: Any, count: int) -> int:
        sms, _ = self.resources[ctypes.addressof(resource)]
        assert sms  # an empty resource is recognized without the driver
        if len(sms) < self.least:
            return _INVALID_CONFIGURATION
        description._obj.value = next(self._handles)
        self.contexts[description._obj.value] = sms
        return 0

    def cuGreenCtxCreate(self, context: Any, description: Any, number: Any, flags: int) -> int:
        if result := self.results.get("cuGreenCtxCreate"):
            return result
        context._obj.value = next(self._handles)
        self.contexts[context._obj.value] = self.contexts[description.value]
        return 0

    def cuGreenCtxGetDevResource(self, context: Any, resource: Any, kind: int) -> int:
        return self._fill(resource, self.contexts[context.value])

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
    assert "too few unused SMs for a share of 16 SMs (0 unused)" in caplog.text


def test_a_share_that_is_larger_than_what_is_left_overlaps_with_a_warning(
    fake: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    division = sm_division.SmDivision(GPU)
    first = sms_of(fake, division, 24)
    assert sms_of(fake, division, 16) & first
    assert "too few unused SMs for a share of 16 SMs (8 unused); it overlaps other shares" in caplog.text
    assert not sms_of(fake, division, 8) & first  # the unused SMs are still there


def test_more_sms_than_the_gpu_has_are_an_error(fake: FakeDriver) -> None:
    with pytest.raises(RuntimeError, match=r"invalid argument \(CUresult 915\)"):
        sm_division.SmDivision(GPU).streams(40, 1)


@pytest.mark.parametrize("result", [_INVALID_TYPE, _INVALID_CONFIGURATION])
def test_a_result_that_says_that_there_are_too_few_sms_is_a_warning(
    fake: FakeDriver, caplog: pytest.LogCaptureFixture, result: int
) -> None:
    division = sm_division.SmDivision(GPU)
    split = fake.cuDevSmResourceSplitByCount
    calls: list[int] = []

    def once(*arguments: Any) -> int:
        calls.append(len(calls))
        return result if len(calls) == 1 else split(*arguments)

    fake.cuDevSmResourceSplitByCount = once  # type: ignore[method-assign]
    assert sms_of(fake, division, 16)
    assert f"too few unused SMs for a share of 16 SMs (32 unused, CUresult {result})" in caplog.text


@pytest.mark.parametrize("function", ["cuDevSmResourceSplitByCount", "cuGreenCtxCreate"])
@pytest.mark.parametrize("result", [_INVALID_VALUE, 999])
def test_another_error_of_the_driver_is_raised(
    fake: FakeDriver, caplog: pytest.LogCaptureFixture, function: str, result: int
) -> None:
    division = sm_division.SmDivision(GPU)
    fake.results[function] = result
    with pytest.raises(RuntimeError, match=rf"CUresult {result}\)"):
        division.streams(16, 1)
    assert not caplog.records  # about too few SMs


@pytest.mark.parametrize("failing", [1, 2])
def test_an_error_of_a_context_is_not_mistaken_for_no_unused_sms(
    fake: FakeDriver, caplog: pytest.LogCaptureFixture, failing: int
) -> None:
    """failing: which of the contexts that are created, of the first share and of the unused SMs."""
    create, calls = fake.cuGreenCtxCreate, itertools.count(1)
    fake.cuGreenCtxCreate = lambda *arguments: (  # type: ignore[method-assign]
        999 if next(calls) == failing else create(*arguments)
    )
    division = sm_division.SmDivision(GPU)
    with pytest.raises(RuntimeError, match=r"CUresult 999\)"):
        _ = [division.streams(count, 1) for count in (16, 8)]
    assert sms_of(fake, division, 8) & set(range(16)) == set()
    assert not caplog.records


def test_a_split_without_a_group_is_an_error_of_the_whole_gpu(fake: FakeDriver) -> None:
    fake.groups = 0
    with pytest.raises(RuntimeError, match=r"CUresult 915\)"):
        sm_division.SmDivision(GPU).streams(16, 1)


def test_unused_sms_that_are_too_few_get_no_context(fake: FakeDriver, caplog: pytest.LogCaptureFixture) -> None:
    fake.least = 8
    division = sm_division.SmDivision(GPU)
    first = sms_of(fake, division, 28)
    assert sms_of(fake, division, 8) & first
    assert "too few unused SMs for a share of 8 SMs (4 unused)" in caplog.text


def test_the_driver_must_have_all_functions_and_be_for_cuda_12_5(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sm_division.available()
    fake.version = 12040
    assert not sm_division.available()
    fake.version = 13000
    monkeypatch.delattr(FakeDriver, "cuGreenCtxStreamCreate")
    assert not sm_division.available()

    def no_driver() -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(sm_division, "driver", no_driver)
    assert not sm_division.available()
