"""Shares of the SMs of one GPU that do not overlap."""

from __future__ import annotations

import statistics

import pytest
import torch

from multi_dnn_ros.backends import green_contexts, sm_division
from multi_dnn_ros.backends.sm_division import SmDivision

GPU = torch.device("cuda", 0)
pytestmark = pytest.mark.skipif(not green_contexts.supported(), reason="needs green contexts")


def ms(streams: list[torch.cuda.Stream], size: int = 4096) -> float:
    """GPU time until matrix products on all streams have finished."""
    left = [torch.rand(size, size, device=GPU, dtype=torch.float16) for _ in streams]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(7):
        torch.cuda.synchronize(GPU)
        begin.record()
        for stream, matrix in zip(streams, left, strict=True):
            stream.wait_event(begin)
            with torch.cuda.stream(stream):
                for _ in range(4):
                    torch.mm(matrix, matrix)
            torch.cuda.current_stream(GPU).wait_stream(stream)
        end.record()
        torch.cuda.synchronize(GPU)
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def test_two_shares_compute_at_the_same_time_without_slowing_each_other_down() -> None:
    division = SmDivision(GPU)
    (sixteen,), (other,) = division.streams(16, 1), division.streams(16, 1)
    alone, both = ms([sixteen]), ms([sixteen, other])
    whole = ms([torch.cuda.Stream(GPU)])
    assert alone > 2.0 * whole  # it is a share
    assert both < 1.3 * alone  # 2.0 if the shares overlapped


def test_all_sms_are_divided_before_a_share_overlaps(caplog: pytest.LogCaptureFixture) -> None:
    division = SmDivision(GPU)
    left = torch.cuda.get_device_properties(GPU).multi_processor_count
    assert sm_division._count(division._unused) == left
    while left >= 16:
        division.streams(16, 1)
        left -= 16
        assert sm_division._count(division._unused) == left
    assert not caplog.records
    division.streams(16, 1)
    assert f"too few unused SMs for a share of 16 SMs ({left} unused)" in caplog.text
