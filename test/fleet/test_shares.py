"""Algorithms 1 and 2, and the decisions made with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.fleet.shares import (
    TENTHS,
    Shares,
    Thresholds,
    by_largest_remainder,
    by_slow_down,
    by_use,
    even,
    manage,
    own_units,
    start_shares,
    used,
    whole,
    within,
)
from multi_dnn_ros.fleet.sharing import Policy, Sharing

THRESHOLDS = Thresholds()


@st.composite
def fleets(draw: st.DrawFn) -> tuple[dict[str, Shares], dict[str, float], list[float]]:
    """Allocation, slow-downs and use of a fleet of up to six units and eight jobs."""
    units = draw(st.integers(1, 6))
    jobs = [f"job{k}" for k in range(draw(st.integers(1, 8)))]
    weights = st.lists(st.integers(0, 10), min_size=units, max_size=units).filter(any)
    allocation = {job: by_largest_remainder([float(w) for w in draw(weights)]) for job in jobs}
    slow_downs = {job: draw(st.floats(1.0, 50.0)) for job in jobs}
    use = draw(st.lists(st.floats(0.0, 1.0), min_size=units, max_size=units))
    return allocation, slow_downs, use


def test_the_worked_example_of_the_paper() -> None:
    """Even shares of two units; use 90, 80, 20 and 50 %: these two have 10 and 20 % free, the least used one 80 %."""
    assert by_use((5, 5, 0, 0), [0.9, 0.8, 0.2, 0.5]) == (1, 2, 7, 0)


def test_remainders_decide_who_gets_the_tenths_that_are_left() -> None:
    assert by_largest_remainder([10.0, 20.0, 80.0]) == (1, 2, 7)
    assert by_largest_remainder([1.0, 1.0, 1.0]) == (4, 3, 3)
    with pytest.raises(ValueError, match=r"weights \[0.0, 0.0\]"):
        by_largest_remainder([0.0, 0.0])


@given(st.lists(st.floats(0.0, 1e300), min_size=1, max_size=70).filter(lambda weights: 0.0 < sum(weights) < 1e307))
def test_parts_are_the_exact_ones_rounded_up_or_down(weights: list[float]) -> None:
    parts = by_largest_remainder(weights)
    assert sum(parts) == TENTHS
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - TENTHS * (weight / sum(weights))) < 1.0 + 1e-6


@given(fleets())
def test_every_job_keeps_ten_tenths(fleet: tuple[dict[str, Shares], dict[str, float], list[float]]) -> None:
    """So no job starves, whatever the slow-downs and the use."""
    allocation, slow_downs, use = fleet
    changed = manage(allocation, slow_downs, use, THRESHOLDS)
    assert list(changed) == list(allocation)
    for shares in changed.values():
        assert sum(shares) == TENTHS
        assert min(shares) >= 0
        assert len(shares) == len(use)


@given(fleets())
def test_only_the_job_with_the_largest_slow_down_changes(
    fleet: tuple[dict[str, Shares], dict[str, float], list[float]],
) -> None:
    allocation, slow_downs, use = fleet
    changed = manage(allocation, slow_downs, use, THRESHOLDS)
    different = [job for job in allocation if changed[job] != allocation[job]]
    if len(allocation) >= len(use):
        assert len(different) <= 1
        is_idle = any(not any(shares[unit] for shares in allocation.values()) for unit in range(len(use)))
        assert is_idle or all(slow_downs[job] == max(slow_downs.values()) for job in different)


def test_an_idle_unit_is_used_though_all_jobs_are_slowed_down_alike() -> None:
    """As after the unit was lost and has returned."""
    allocation = {"a": (10, 0), "b": (10, 0)}
    assert manage(allocation, {"a": 2.0, "b": 2.0}, [1.0, 0.0], THRESHOLDS) == {"a": (0, 10), "b": (10, 0)}
    shared = {"a": (2, 8, 0), "b": (0, 10, 0), "c": (10, 0, 0)}
    changed = manage(shared, {"a": 1.0, "b": 1.1, "c": 1.0}, [1.0, 1.0, 0.0], THRESHOLDS)
    assert changed == {**shared, "b": (0, 0, 10)}


@given(fleets())
def test_idle_units_are_filled_one_by_one(fleet: tuple[dict[str, Shares], dict[str, float], list[float]]) -> None:
    allocation, slow_downs, use = fleet
    if len(allocation) < len(use):
        return

    def idle(shares: dict[str, Shares]) -> int:
        return sum(1 for unit in range(len(use)) if not any(tenths[unit] for tenths in shares.values()))

    before = idle(allocation)
    changed = manage(allocation, slow_downs, use, THRESHOLDS)
    if before:  # at least as many jobs as units, so that two jobs share another unit
        assert idle(changed) == before - 1


@given(fleets())
def test_few_jobs_get_units_of_their_own_and_stay_there(
    fleet: tuple[dict[str, Shares], dict[str, float], list[float]],
) -> None:
    allocation, slow_downs, use = fleet
    if len(allocation) >= len(use):
        return
    changed = own_units(allocation, slow_downs, use)
    units = [unit for shares in changed.values() for unit in used(shares)]
    assert sorted(units) == list(range(len(use)))
    assert own_units(changed, dict.fromkeys(changed, 1.0), use[::-1]) == changed


def test_slow_downs_that_are_nearly_equal_change_nothing() -> None:
    allocation = {"a": (10, 0), "b": (0, 10), "c": (5, 5)}
    assert manage(allocation, {"a": 2.0, "b": 2.1, "c": 2.0}, [1.0, 0.1], THRESHOLDS) == allocation


def test_use_decides_before_slow_downs() -> None:
    allocation = {"a": (10, 0), "b": (10, 0)}
    assert manage(allocation, {"a": 4.0, "b": 2.0}, [1.0, 0.2], THRESHOLDS)["a"] == (0, 10)
    assert manage({"a": (5, 5), "b": (0, 10)}, {"a": 4.0, "b": 2.0}, [0.9, 0.85], THRESHOLDS)["a"] == (3, 7)


def test_more_tenths_move_the_further_the_slow_down_is_from_the_middle() -> None:
    allocation = {"a": (10, 0), "b": (0, 10)}
    moved = [by_slow_down("a", allocation, {"a": worst, "b": 2.0})[1] for worst in (2.1, 3.0, 6.0, 38.0)]
    assert moved == [1, 2, 5, 9]


def test_a_new_job_starts_on_the_unit_with_the_fewest_tenths() -> None:
    assert start_shares({"a": (10, 0, 0), "b": (0, 4, 6)}, [0.0, 0.0, 0.0]) == whole(1, 3)
    assert start_shares({}, [0.5, 0.1]) == whole(1, 2)
    assert sum(even(range(64), 64)) == TENTHS


def test_tenths_beyond_the_limits_of_memory_move_to_other_units() -> None:
    assert within((10, 0, 0), (4, 10, 10)) == (4, 6, 0)
    assert within((4, 6, 0), (10, 10, 10)) == (4, 6, 0)
    assert within((10, 0), (4, 5)) is None


@given(st.lists(st.floats(0.5, 4.0), min_size=2, max_size=7), st.integers(2, 4))
def test_decisions_settle_without_oscillation(demands: list[float], units: int) -> None:
    """On units that slow each job down by the demand of all jobs there, changes end, and no job is worse off than the
    slowest was at the start.
    """
    jobs = {f"job{k}": demand for k, demand in enumerate(demands)}

    def slow_downs(allocation: dict[str, Shares]) -> dict[str, float]:
        load = [sum(jobs[job] * shares[unit] / TENTHS for job, shares in allocation.items()) for unit in range(units)]
        return {job: max(load[unit] / jobs[job] for unit in used(shares)) for job, shares in allocation.items()}

    sharing = Sharing(THRESHOLDS)
    allocation = {job: whole(0, units) for job in jobs}
    first = max(slow_downs(allocation).values())
    quiet = 0
    for _ in range(3000):
        now = slow_downs(allocation)
        top = max(sum(jobs[job] * shares[unit] for job, shares in allocation.items()) for unit in range(units))
        use = [
            sum(jobs[job] * shares[unit] for job, shares in allocation.items()) / max(top, 1e-9)
            for unit in range(units)
        ]
        decision = sharing.decide(allocation, now, use)
        quiet = 0 if decision.allocation != allocation else quiet + 1
        allocation = decision.allocation
        if quiet == 5:
            break
    assert quiet == 5
    assert max(slow_downs(allocation).values()) <= first * 1.0001


def test_a_change_that_does_not_help_is_reverted_and_not_repeated() -> None:
    sharing = Sharing(THRESHOLDS)
    allocation: dict[str, Shares] = {"a": (10, 0), "b": (0, 10), "c": (10, 0)}
    slow = {"a": 4.0, "b": 1.0, "c": 3.0}
    assert sharing.decide(allocation, slow, [0.5, 0.5]).reason == "algorithm"  # a set of jobs never seen before
    tried = sharing.decide(allocation, slow, [0.5, 0.5])
    seen = [tried.allocation]
    for _ in range(40):
        worse = {job: value * (1.2 if tried.allocation[job] != allocation[job] else 1.0) for job, value in slow.items()}
        back = sharing.decide(tried.allocation, worse, [0.5, 0.5])
        assert back.allocation == allocation
        assert back.reason == "reverted"
        tried = sharing.decide(back.allocation, slow, [0.5, 0.5])
        if tried.reason == "unchanged":
            break
        assert tried.allocation not in seen
        seen.append(tried.allocation)
    assert tried.reason == "unchanged"


def test_changes_that_are_expected_to_be_reverted_are_not_tried() -> None:
    """Two jobs per unit. Any tenth of `a` on the other unit makes the two jobs there slower than `a` is now."""
    allocation: dict[str, Shares] = {"a": (10, 0), "b": (10, 0), "c": (0, 10), "d": (0, 10)}
    decision = Sharing(THRESHOLDS).decide(allocation, {"a": 4.0, "b": 3.0, "c": 3.0, "d": 3.0}, [0.9, 0.9])
    assert (decision.allocation, decision.reason) == (allocation, "unchanged")
    alone = Sharing(THRESHOLDS).decide(
        {**allocation, "d": (10, 0)}, {"a": 4.0, "b": 3.0, "c": 1.0, "d": 3.0}, [0.9] * 2
    )
    assert alone.jobs == ("a",)  # two jobs instead of three


def test_only_what_is_left_of_a_job_is_expected_to_change() -> None:
    """A tenth of `x` on the unit of `z` makes the steps of `z` twice as long, but `z` is nearly done."""
    allocation: dict[str, Shares] = {"x": (10, 0), "y": (10, 0), "w": (10, 0), "z": (0, 10)}
    slow_downs = {"x": 3.0, "y": 2.5, "w": 2.5, "z": 1.95}
    assert Sharing(THRESHOLDS).decide(allocation, slow_downs, [0.9, 0.9], remaining=slow_downs).reason == "unchanged"
    remaining = {"x": 2.9, "y": 1.2, "w": 1.2, "z": 0.1}
    assert Sharing(THRESHOLDS).decide(allocation, slow_downs, [0.9, 0.9], remaining=remaining).jobs == ("x",)


@pytest.mark.parametrize(
    ("policy", "units", "expected"),
    [
        ("even", 2, [(5, 5), (5, 5), (5, 5)]),
        ("one unit", 2, [(10, 0), (0, 10), (10, 0)]),
        ("even", 15, [(1,) * 10 + (0,) * 5, (1,) * 5 + (0,) * 5 + (1,) * 5, (0,) * 5 + (1,) * 10]),
    ],
)
def test_shares_of_the_baselines_do_not_change(policy: Policy, units: int, expected: list[Shares]) -> None:
    sharing = Sharing(THRESHOLDS, policy=policy)
    use, slow_downs = [0.1] * (units - 1) + [1.0], {"a": 9.0, "b": 1.0, "c": 1.0}
    allocation: dict[str, Shares] = {}
    for job in "abc":
        allocation = sharing.decide({**allocation, job: (0,) * units}, slow_downs, use).allocation
    assert list(allocation.values()) == expected
    assert sharing.decide(allocation, slow_downs, use).allocation == allocation
    left = {"c": allocation["c"]}  # also when the others have ended
    assert sharing.decide(left, slow_downs, use).allocation == left
    assert not sharing.has_trial


def test_limits_hold_in_every_decision() -> None:
    sharing = Sharing(THRESHOLDS)
    placed = sharing.decide({"a": (0, 0), "b": (0, 10)}, {"b": 1.0}, [0.0, 1.0], {"a": (3, 10)})
    assert placed.allocation["a"] == (3, 7)
    assert placed.reason == "start"
