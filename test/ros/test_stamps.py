"""Ages of images by their stamps, and stamps that do not fit the node's clock."""

from __future__ import annotations

import pytest

from multi_dnn_ros.ros.diagnostics import StampAges

SECOND = 1_000_000_000
NOW = 1_000 * SECOND


def ages(count: int, age_ns: int = 0, clock_ns: int = NOW, *, stamped: bool = True) -> StampAges:
    """Of images that arrive every 0.1 s; the monotonic clock begins at 0."""
    found = StampAges()
    for number in range(count):
        now_ns = number * SECOND // 10
        clock = clock_ns + now_ns if clock_ns else 0
        found.add(now_ns, clock, clock - age_ns if stamped else 0)
    return found


def test_ages_from_before_the_clock_was_set_back_are_forgotten() -> None:
    found = ages(20)
    found.add(2 * SECOND, NOW + 18 * SECOND // 10, NOW)  # a correction
    assert found.percentiles(2 * SECOND).count == 21
    found.add(2 * SECOND, NOW - 30 * SECOND, NOW - 30 * SECOND)  # a recording is played again
    assert found.percentiles(2 * SECOND).count == 1


@pytest.mark.parametrize(
    ("found", "simulated", "words"),
    [
        (ages(20, SECOND), False, ""),
        (ages(9, 60 * SECOND), False, ""),
        (ages(20, 60 * SECOND), False, "60 s older"),
        (ages(20, -60 * SECOND), False, "60 s newer"),
        (ages(20, 60 * SECOND), True, "/clock has the time of something else"),
        (ages(20, stamped=False), False, "no stamp"),
        (ages(20, clock_ns=0), True, "nothing publishes /clock"),
    ],
)
def test_stamps_that_do_not_fit_the_clock(found: StampAges, simulated: bool, words: str) -> None:
    problem = found.problem(2 * SECOND, simulated=simulated)
    assert bool(problem) == bool(words)
    assert words in problem
