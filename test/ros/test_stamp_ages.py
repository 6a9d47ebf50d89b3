"""Ages by header stamps: clocks that are set back, clocks that have not started, images without stamps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.ros.stamp_ages import WINDOW_NS, StampAges

MS, SECOND = 1_000_000, 1_000_000_000
START = 1_700_000_000 * SECOND


def test_the_age_is_the_clock_minus_the_stamp() -> None:
    ages = StampAges()
    for number in range(5):
        ages.add(number * SECOND, START + number * SECOND, START + number * SECOND - 30 * MS)
    assert (ages.percentiles(4 * SECOND).count, ages.percentiles(4 * SECOND).max) == (5, 30.0)
    assert ages.percentiles(4 * SECOND + WINDOW_NS).count == 1
    assert ages.percentiles(5 * SECOND + WINDOW_NS).count == 0


def test_images_without_a_stamp_and_a_clock_that_has_not_started_give_no_age() -> None:
    ages = StampAges()
    ages.add(1, START, 0)
    ages.add(2, 0, START)
    assert ages.percentiles(3).count == 0


def test_ages_from_before_the_clock_was_set_back_are_forgotten() -> None:
    ages = StampAges()
    ages.add(1 * SECOND, START + 10 * SECOND, START + 10 * SECOND - 5 * MS)
    ages.add(2 * SECOND, START + 10 * SECOND, START)  # the first image of the next round, before its first clock
    ages.add(3 * SECOND, START + 1 * SECOND, START + 1 * SECOND - 7 * MS)
    assert (ages.percentiles(3 * SECOND).count, ages.percentiles(3 * SECOND).max) == (1, 7.0)


def test_small_corrections_of_the_clock_keep_the_ages() -> None:
    ages = StampAges()
    ages.add(1, START, START - 5 * MS)
    ages.add(2, START - 100 * MS, START - 108 * MS)
    assert (ages.percentiles(3).count, ages.percentiles(3).max) == (2, 8.0)


@given(st.integers(1, 60), st.integers(1, 5), st.floats(0.1, 4.0))
def test_a_recording_that_is_repeated_never_shows_ages_of_its_length(length: int, rounds: int, rate: float) -> None:
    """Ages of a looped recording whose clock has a resolution of 50 ms, and whose first image is before its clock."""
    ages = StampAges()
    at_ns, clock_ns = 0, 0
    for _ in range(rounds):
        for number in range(length * 5):
            stamp_ns = START + number * SECOND // 5
            if number:
                clock_ns = stamp_ns - stamp_ns % (50 * MS)
            ages.add(at_ns, clock_ns, stamp_ns)
            at_ns += round(SECOND / 5 / rate)
            if number:
                assert abs(ages.percentiles(at_ns).max) <= 50
