"""Waiting for a GPU: polled around the expected time only. The GPU's progress is a fake event."""

from __future__ import annotations

import time

import pytest

from multi_dnn_ros.partition.gpu_wait import POLLED_S, wait_for


class FakeMark:
    """Reached `after_s` seconds from now. waited: whether somebody waited for it without polling."""

    def __init__(self, after_s: float) -> None:
        self._reached = time.perf_counter() + after_s
        self.queries = 0
        self.waited = False

    def query(self) -> bool:
        self.queries += 1
        return time.perf_counter() >= self._reached

    def synchronize(self) -> None:
        self.waited = True
        time.sleep(max(0.0, self._reached - time.perf_counter()))


@pytest.mark.parametrize(
    ("after_s", "expected_s", "waited"),
    [
        (0.0, 0.0, False),  # reached already
        (0.02, 0.02, False),  # as expected, unless this process was not scheduled
        (0.05, 0.0, True),  # later than expected
        (0.01, 0.03, False),  # earlier than expected
    ],
)
def test_the_event_has_been_reached_afterwards(after_s: float, expected_s: float, waited: bool) -> None:
    begin = time.perf_counter()
    mark = FakeMark(after_s)
    wait_for(mark, begin + expected_s)
    assert time.perf_counter() >= begin + after_s
    if waited:
        assert mark.waited
    if not after_s:
        assert mark.queries == 1


def test_an_event_that_is_late_is_polled_for_a_limited_time() -> None:
    mark = FakeMark(0.2)
    expected = time.perf_counter() + 0.02
    wait_for(mark, expected)
    assert mark.waited
    assert mark.queries > 0
    polled = mark.queries
    assert mark.query()
    assert polled < 2 * POLLED_S / 1e-7  # at least 0.1 us each: no polling during the wait of 0.18 s
