"""Step times of a job that has its units for itself, for shares that were measured and for others."""

from __future__ import annotations

import pytest

from multi_dnn_ros.fleet.exclusive_times import ExclusiveTimes
from multi_dnn_ros.fleet.turn_plans import PlannedJob, Plans, with_own_units


def test_equal_parts_on_other_units_take_as_long() -> None:
    times = ExclusiveTimes()
    times.record((0, 7, 3), 0.07)
    times.record_use((0, 7, 3), [0.1, 0.6, 0.8])
    assert times.estimated_step_s((3, 0, 7), 0.01) == 0.07
    assert times.estimated_use((3, 0, 7)) == 0.8


def test_other_shares_are_estimated_by_the_largest_part() -> None:
    times = ExclusiveTimes()
    assert times.estimated_step_s((10, 0), 0.04) == 0.04
    times.record((10, 0), 0.10)
    assert times.estimated_step_s((7, 3), 0.04) == pytest.approx(0.07)
    assert times.estimated_step_s((2, 8), 0.09) == 0.09  # never faster than with all units for itself
    times.record((4, 3), 0.06)
    assert times.estimated_step_s((3, 7), 0.04) == pytest.approx(0.08)
    assert times.estimated_step_s((2, 2), 0.02) == pytest.approx(0.03)


def test_use_that_is_not_known_counts_as_all() -> None:
    times = ExclusiveTimes()
    assert times.estimated_use((10, 0)) == 1.0
    times.record_use((10, 0), [0.0, 0.5])  # as of a GPU without this figure
    assert times.estimated_use((10, 0)) == 1.0


def test_jobs_with_own_units() -> None:
    assert with_own_units({"a": (10, 0, 0), "b": (0, 5, 5), "c": (0, 0, 10)}) == ["a"]


def test_a_plan_expects_what_other_shares_and_the_change_cost() -> None:
    times = ExclusiveTimes()
    times.record((10, 0), 1.0)
    jobs = {
        "a": PlannedJob((10, 0), 0, 10, 0.0, 1.0, times, priority=2.0),
        "b": PlannedJob((10, 0), 0, 20, 0.0, 1.0, times, trains=False),
    }
    plans = Plans(jobs, change_s=4.0)
    assert plans.plan().training == {"a"}
    assert plans.weighted(plans.plan()) == pytest.approx({"a": 2.0, "b": 1.5})
    assert plans.expect({"a": (10, 0), "b": (0, 10)}) == pytest.approx({"a": 2.0, "b": 1.2})
    assert plans.work == {"a": 10.0, "b": 20.0}
