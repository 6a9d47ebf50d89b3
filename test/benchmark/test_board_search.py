"""The search of `multi-dnn benchmark board` finds the highest rate of a fake board, and its time is planned."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.benchmark.board.search import (
    DROP_LIMIT,
    PRECISION,
    RateRange,
    RateSearch,
    bounds,
    min_frames,
    served,
)

RATES = RateRange(0.5, 200.0)
#: Rates have four significant digits.
ROUNDING = 1.001


def search(
    passes: Callable[[float], bool],
    trials: int,
    rates: RateRange = RATES,
    hint: Callable[[float], float | None] = float,
) -> tuple[RateSearch, list[float]]:
    """A finished search, and the rates that were tried. hint: frames per second that a failing rate yields."""
    found, tried = RateSearch(rates, trials), []
    while (rate := found.next_hz()) is not None:
        tried.append(rate)
        assert len(tried) <= trials
        passed = passes(rate)
        found.add(rate, passed, None if passed else hint(rate))
    return found, tried


EDGES = st.floats(0.6, 190.0)
HINTS = st.sampled_from((0.0, 0.1, 0.8, 1.0, 1.2, 10.0))


@given(EDGES, HINTS)
def test_the_edge_of_a_board_without_noise_is_found(edge: float, hint: float) -> None:
    found, tried = search(lambda rate: rate <= edge, 30, hint=lambda rate: hint * min(edge, rate))
    assert found.best_hz is not None
    assert found.failing_hz is not None
    assert found.best_hz <= edge < found.failing_hz
    assert found.failing_hz <= found.best_hz * (1.0 + PRECISION) * ROUNDING
    assert len(tried) == len(set(tried)) <= 14  # 9 halvings, 4 bisections


@given(EDGES, st.integers(0, 40), HINTS)
def test_the_number_of_trials_is_bounded_and_every_rate_in_range(edge: float, trials: int, hint: float) -> None:
    found, tried = search(lambda rate: rate <= edge, trials, hint=lambda rate: hint * edge)
    assert len(tried) <= trials
    assert all(RATES.lowest_hz <= rate <= RATES.highest_hz for rate in tried)
    assert found.best_hz is None or found.best_hz <= edge


@given(EDGES, st.integers(0, 2**32))
def test_noise_near_the_edge_moves_the_result_no_further_than_the_noise(edge: float, seed: int) -> None:
    """Within 20 % of the edge a trial passes or fails by chance."""
    chance = random.Random(seed)

    def passes(rate: float) -> bool:
        return chance.random() < 0.5 if 0.8 * edge < rate < 1.25 * edge else rate <= edge

    found, tried = search(passes, 30, hint=lambda rate: min(edge, rate))
    assert len(tried) <= 20
    if found.best_hz is None:  # only rates near the lowest one
        assert edge * 0.8 < RATES.lowest_hz * ROUNDING
    else:
        assert 0.8 * edge / (1.0 + PRECISION) / ROUNDING <= found.best_hz <= 1.25 * edge


def test_a_good_hint_saves_trials() -> None:
    edge = 23.0
    _, unhinted = search(lambda rate: rate <= edge, 30, hint=lambda rate: None)
    _, hinted = search(lambda rate: rate <= edge, 30, hint=lambda rate: edge)
    assert len(hinted) < len(unhinted)


def test_a_board_that_serves_no_rate() -> None:
    found, tried = search(lambda rate: False, 30)
    assert found.best_hz is None
    assert tried[-1] == RATES.lowest_hz == found.failing_hz


def test_a_board_that_serves_every_rate() -> None:
    found, tried = search(lambda rate: True, 30)
    assert found.best_hz == RATES.highest_hz == tried[-1]
    assert found.failing_hz is None


def test_a_range_of_one_rate_takes_one_trial() -> None:
    for passed in (True, False):
        assert search(lambda rate: passed, 30, RateRange(5.0, 5.0))[1] == [5.0]  # noqa: B023
    with pytest.raises(ValueError, match="rates from 6 to 5 Hz: the range is empty"):
        RateRange(6.0, 5.0)


def test_a_rate_that_fails_later_lowers_the_result() -> None:
    found, _ = search(lambda rate: rate <= 20.0, 30)
    best = found.best_hz
    assert best is not None
    found.add(best, False)
    assert found.failing_hz == best
    assert found.best_hz is None or found.best_hz < best


def test_trials_of_an_interrupted_run_are_not_repeated() -> None:
    first, tried = search(lambda rate: rate <= 20.0, 3)
    second = RateSearch(RATES, 30)
    for rate in tried:
        second.add(rate, rate <= 20.0)
    assert (second.best_hz, second.failing_hz) == (first.best_hz, first.failing_hz)
    assert second.next_hz() not in tried


@given(st.floats(0.0, 1.0), st.integers(1, 10**6))
def test_bounds_enclose_the_share_and_narrow(share: float, samples: int) -> None:
    low, high = bounds(share, samples)
    assert 0.0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1.0
    wider = bounds(share, samples / 2.0)
    assert wider[0] <= low + 1e-9
    assert high <= wider[1] + 1e-9


def test_bounds_are_those_of_wilson() -> None:
    low, high = bounds(0.1, 100)  # z = 1.6449
    assert (round(low, 4), round(high, 4)) == (0.0607, 0.1604)


def test_a_trial_is_decided_with_the_stated_confidence() -> None:
    """Of the trials of a board that drops 5 %, about one in twenty counts as served, one in twenty as not served."""
    chance, frames = random.Random(1), 500
    verdicts = [served(sum(chance.random() < DROP_LIMIT for _ in range(frames)) / frames, frames) for _ in range(2000)]
    assert 0.02 < verdicts.count(True) / len(verdicts) < 0.08
    assert 0.02 < verdicts.count(False) / len(verdicts) < 0.08
    assert served(0.0, min_frames()) is True
    assert served(0.0, min_frames() - 1) is None
    assert served(0.0, 0) is None
    assert served(1.0, 10) is False
