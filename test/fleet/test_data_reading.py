"""When a job begins without ranks that are late to read its data; the time is the test's."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.fleet.data_reading import DataReading
from multi_dnn_ros.fleet.report_timer import AWAITED_S


def begin_s(seconds: Sequence[int]) -> int:
    """When a job begins whose ranks need these times to read the data, in whole seconds."""
    reading = DataReading()
    for unit in range(len(seconds)):
        reading.begin(unit)
    now = 0
    while not reading.is_enough:
        now += 1
        reading.add(1.0)
        for unit in reading.units:
            if now >= seconds[unit]:
                reading.end(unit)
    return now


@given(st.lists(st.integers(1, 500), min_size=1, max_size=6))
def test_a_job_waits_for_ranks_that_need_a_similar_time(seconds: list[int]) -> None:
    first = min(seconds)
    assert begin_s(seconds) == min(max(seconds), max(2 * first, first + int(AWAITED_S)))


def test_a_rank_that_was_started_again_is_not_waited_for() -> None:
    reading = DataReading()
    reading.begin(0)
    reading.begin(1)
    reading.add(5.0)
    reading.end(0)
    assert not reading.is_enough
    reading.forget(1)
    reading.begin(1, awaited=False)
    assert reading.is_enough
    assert reading.units == [1]


@given(st.lists(st.floats(0.1, 100.0), max_size=20), st.floats(1.0, 1000.0))
def test_a_rank_is_overdue_after_the_limit(passed_s: list[float], limit_s: float) -> None:
    reading = DataReading()
    reading.begin(3)
    total_s = 0.0
    for seconds in passed_s:
        reading.add(seconds)
        total_s += seconds
    assert reading.overdue(limit_s) == (3 if total_s >= limit_s else None)
    reading.end(3)
    assert reading.overdue(limit_s) is None
