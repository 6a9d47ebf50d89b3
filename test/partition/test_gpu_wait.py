"""Waiting for a GPU: polled around the expected time only. The clock and the GPU's progress are fakes."""

from __future__ import annotations

import time

import pytest

from multi_dnn_ros.partition.gpu_wait import POLLED_S, wait_for

#: Time that passes in each call of the fake clock's `sleep` and of the fake event's `query`.
TICK_S = 5e-6


class FakeClock:
    """Time that passes only in `sleep` and while the event is polled or waited for."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def time(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + TICK_S


class FakeMark:
    """Reached at `reached_s`. queries: when it was polled. waits: when a wait without polling began."""

    def __init__(self, clock: FakeClock, reached_s: float) -> None:
        self._clock = clock
        self._reached_s = reached_s
        self.queries: list[float] = []
        self.waits: list[float] = []

    def query(self) -> bool:
        self.queries.append(self._clock.now_s)
        self._clock.now_s += TICK_S
        return self.queries[-1] >= self._reached_s

    def synchronize(self) -> None:
        self.waits.append(self._clock.now_s)
        self._clock.now_s = max(self._clock.now_s, self._reached_s)


@pytest.mark.parametrize(
    ("after_s", "expected_s", "waited"),
    [
        (0.0, 0.0, False),  # reached already
        (0.02, 0.02, False),  # as expected
        (0.02 + 0.5 * POLLED_S, 0.02, False),  # a little later than expected
        (0.02 - 0.5 * POLLED_S, 0.02, False),  # a little earlier than expected
        (0.01, 0.03, False),  # earlier than expected
        (0.05, 0.0, True),  # nothing is known about its time
        (0.2, 0.02, True),  # later than expected
    ],
)
def test_an_event_is_polled_around_its_expected_time_and_waited_for_if_it_is_late(
    after_s: float, expected_s: float, waited: bool
) -> None:
    clock = FakeClock()
    begin_s = clock.now_s
    mark = FakeMark(clock, begin_s + after_s)
    wait_for(mark, begin_s + expected_s, clock.time, clock.sleep)
    assert clock.now_s >= begin_s + after_s
    assert bool(mark.waits) == waited
    assert mark.queries[0] >= begin_s + expected_s - POLLED_S
    if waited:
        (wait_s,) = mark.waits
        assert abs(wait_s - (begin_s + expected_s + POLLED_S)) < 3 * TICK_S
        assert mark.queries[-1] < wait_s  # no polling during the wait
    else:  # noticed at once, unless it was reached before the polling began
        assert mark.queries[-1] - max(begin_s + after_s, mark.queries[0]) < 3 * TICK_S
    assert mark.queries[-1] <= begin_s + expected_s + POLLED_S + 3 * TICK_S


def test_the_time_is_that_of_perf_counter() -> None:
    class Reached:
        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            pytest.fail("it was reached already")

    begin_s = time.perf_counter()
    wait_for(Reached(), begin_s + 0.02)
    assert time.perf_counter() >= begin_s + 0.02 - POLLED_S
