"""Which images a DNN gets: the parameters enable and max_rate_hz."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.engine.task import DropReason
from multi_dnn_ros.serving.admission import Admission, RateLimit

S = 1_000_000_000


def accepted(rate_hz: float, times_ns: list[int]) -> list[int]:
    limit = RateLimit(rate_hz)
    return [now_ns for now_ns in times_ns if limit.accept(now_ns)]


@given(
    st.floats(0.1, 200.0),
    st.lists(st.integers(0, 2 * S), min_size=1, max_size=200),
)
def test_no_window_has_more_events_than_the_rate_allows(rate_hz: float, gaps_ns: list[int]) -> None:
    times = accepted(rate_hz, list(accumulate(gaps_ns)))
    assert times  # the first one is never refused
    period_ns = 1e9 / rate_hz
    for first, begin_ns in enumerate(times):
        for last in range(first, len(times)):
            count = last - first + 1
            assert count <= 1 + (times[last] - begin_ns + 1.25 * period_ns) / period_ns + 1e-3


@pytest.mark.parametrize(("camera_hz", "limit_hz"), [(30, 10), (30, 7), (30, 29), (60, 0.5), (29.97, 20)])
@pytest.mark.parametrize("jitter_ns", [0, 3_000_000])
def test_the_mean_rate_does_not_drift(camera_hz: float, limit_hz: float, jitter_ns: int) -> None:
    times = [round(n * 1e9 / camera_hz) + (jitter_ns if n % 3 else 0) for n in range(round(600 * camera_hz))]
    assert len(accepted(limit_hz, times)) == pytest.approx(600 * limit_hz, abs=2)


@pytest.mark.parametrize("limit_hz", [30.0, 31.0, 100.0])
def test_a_camera_that_is_as_fast_as_the_limit_loses_nothing(limit_hz: float) -> None:
    times = [round(n * 1e9 / 30) + (7_000_000 if n % 2 else 0) for n in range(3000)]
    assert accepted(limit_hz, times) == times


def test_there_is_no_burst_after_a_pause() -> None:
    times = [0, 3600 * S, *(3600 * S + n * S // 100 for n in range(1, 100))]
    assert accepted(1.0, times) == [0, 3600 * S, 3600 * S + 75 * S // 100]


def test_a_tiny_rate_is_a_valid_rate() -> None:
    assert accepted(5e-324, [0, 10**17]) == [0]


def test_each_camera_has_its_own_limit_and_disabling_takes_precedence() -> None:
    admission = Admission({"off": False}, {"slow": 1.0, "off": 1.0})
    dnns = ("slow", "fast", "off")
    off = {"off": (DropReason.SWITCHED_OFF, "switched off (parameter enable)")}
    slow = {"slow": (DropReason.RATE_LIMITED, "max_rate_hz is 1")}
    assert admission.refusals("front", dnns, 5 * S) == off
    assert admission.refusals("rear", dnns, 5 * S + 1) == off
    assert admission.refusals("front", dnns, 5 * S + 2) == off | slow
    admission.set_enabled("off", True)
    assert admission.refusals("front", dnns, 5 * S + 3) == slow
    admission.set_max_rate("slow", 0.0)
    assert admission.refusals("front", ("slow", "fast"), 5 * S + 4) == {}
    admission.set_enabled("fast", False)
    assert not admission.is_enabled("fast")
    assert admission.is_enabled("slow")
