"""Which units jobs have and which jobs train: properties of decisions, and of whole fleets with a simulated clock."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multi_dnn_ros.fleet.policy import POLICIES, Decision, JobView, Policy, Units, decide, smallest_limit

seconds = st.floats(1.0, 100.0)


def view(steps: int, units: Units = (0,), **more: object) -> JobView:
    """A job whose steps take a second on one unit, in half the time on two."""
    return JobView(**{"total": steps, "left": steps, "elapsed_s": 0.0, "step_s": {1: 1.0}, "units": units, **more})  # type: ignore[arg-type]


@st.composite
def fleets(draw: st.DrawFn) -> tuple[dict[str, JobView], int]:
    """Up to six jobs on up to four units, in any state that decisions can have led to, and the number of units."""
    count = draw(st.integers(1, 4))
    free = set(range(count))
    jobs: dict[str, JobView] = {}
    for k in range(draw(st.integers(1, 6))):
        units: Units = ()
        kind = draw(st.sampled_from(("new", "one", "several")))
        if kind == "several" and len(free) >= 3:
            units = tuple(draw(st.permutations(sorted(free)))[:2])
            free -= set(units)
        elif kind != "new" and free:
            units = (draw(st.sampled_from(sorted(free))),)  # still free for others that have one unit
        total = draw(st.integers(1, 1000))
        step_s = {1: draw(st.floats(0.01, 10.0)), **({2: draw(st.floats(0.01, 10.0))} if draw(st.booleans()) else {})}
        is_new = not units or draw(st.booleans())
        change_s = draw(st.floats(0.0, 60.0))
        jobs[f"job{k}"] = JobView(
            total, draw(st.integers(0, total)), draw(st.floats(0.0, 1e4)), {} if is_new and len(units) < 2 else step_s,
            draw(st.sampled_from((0.5, 1.0, 4.0))), units, draw(st.sampled_from((0.0, change_s))), change_s,
            draw(st.booleans()),
        )  # fmt: skip
    several = {unit for job in jobs.values() if len(job.units) > 1 for unit in job.units}
    return {
        name: replace(job, units=()) if len(job.units) == 1 and set(job.units) & several else job
        for name, job in jobs.items()
    }, count


def holders(decision: Decision, unit: int) -> set[str]:
    return {name for name, units in decision.units.items() if unit in units}


@given(fleets(), st.sampled_from(POLICIES))
def test_every_job_has_units_and_trains_only_there_when_it_is_ready(
    fleet: tuple[dict[str, JobView], int], policy: Policy
) -> None:
    jobs, count = fleet
    decision = decide(policy, jobs, count)
    assert decision.units.keys() == jobs.keys()
    for units in decision.units.values():
        assert len(units) == len(set(units)) > 0
        assert set(units) <= set(range(count))
    for name, units in decision.training.items():
        assert units == decision.units[name] == jobs[name].units
        assert jobs[name].ready_s == 0.0


@given(fleets())
def test_whole_units_are_given_to_one_job_at_a_time_and_none_waits_beside_an_unused_unit(
    fleet: tuple[dict[str, JobView], int],
) -> None:
    jobs, count = fleet
    decision = decide("fair", jobs, count)
    used = [unit for units in decision.training.values() for unit in units]
    assert len(used) == len(set(used))
    for name, units in decision.units.items():
        if len(units) > 1:  # several units of a job are its own
            assert all(holders(decision, unit) == {name} for unit in units)
        is_ready = jobs[name].ready_s == 0.0 and units == jobs[name].units
        assert name in decision.training or not is_ready or set(units) & set(used)


@given(st.lists(st.tuples(seconds, seconds, seconds, st.sampled_from((0.5, 1.0, 3.0))), min_size=1, max_size=5))
def test_on_one_unit_no_order_has_a_smaller_largest_slow_down(rows: list[tuple[float, float, float, float]]) -> None:
    jobs = {
        f"job{k}": JobView(100, 50, elapsed_s, {1: alone_s / 100}, priority, (0,))
        for k, (work_s, elapsed_s, alone_s, priority) in enumerate(rows)
    }
    work_s = {f"job{k}": row[0] for k, row in enumerate(rows)}

    def largest(order: tuple[str, ...]) -> float:
        ends = dict(zip(order, itertools.accumulate(work_s[name] for name in order), strict=True))
        return max(jobs[name].weighted_slow_down(ends[name]) for name in order)

    best = min(map(largest, itertools.permutations(jobs)))
    assert smallest_limit(jobs, work_s) == pytest.approx(best)
    ends = decide("fair", jobs, 1).end_s  # in the order of the turns, the first one trains
    assert max(jobs[name].weighted_slow_down(end_s) for name, end_s in ends.items()) == pytest.approx(
        smallest_limit(jobs, {name: job.work_s((0,)) for name, job in jobs.items()})
    )


def test_a_short_job_trains_first_unless_the_long_one_has_waited_or_is_more_important() -> None:
    assert decide("fair", {"long": view(10), "short": view(2)}, 1).training == {"short": (0,)}
    assert decide("fair", {"long": view(10, elapsed_s=50.0), "short": view(2)}, 1).training == {"long": (0,)}
    assert decide("fair", {"long": view(10, priority=10.0), "short": view(2)}, 1).training == {"long": (0,)}


def test_a_free_unit_is_used_if_the_change_does_not_take_too_long() -> None:
    alone = {"a": view(100)}
    assert decide("fair", alone, 3).units == {"a": (0, 1, 2)}
    assert decide("fair", {"a": view(100, change_s=200.0)}, 3).units == {"a": (0,)}
    # Two units were tried, and did not help.
    assert decide("fair", {"a": view(100, (0, 1), step_s={1: 1.0, 2: 1.2})}, 3).units == {"a": (0,)}
    shared = {"a": view(100, trains=True), "b": view(100)}
    assert sorted(decide("fair", shared, 2).units.values()) == [(0,), (1,)]


@dataclass
class _Simulated:
    """arrives_s: when the job begins. left: steps that are not done. end_s: when it has ended."""

    arrives_s: float
    job: JobView
    left: float = 0.0
    end_s: float = field(default=0.0)


def simulate(policy: Policy, jobs: dict[str, tuple[float, int]], count: int, tick_s: float = 2.0) -> dict[str, float]:
    """The slow-down of each job: (arrival in seconds, steps of a second), on units that several jobs share equally."""
    left = {name: _Simulated(at, view(steps, ()), steps) for name, (at, steps) in jobs.items()}
    slow_downs: dict[str, float] = {}
    now = 0.0
    while left:
        present = {
            name: replace(each.job, left=each.left, elapsed_s=now - each.arrives_s)
            for name, each in left.items() if each.arrives_s <= now
        }  # fmt: skip
        decision = decide(policy, present, count)
        now += tick_s
        for name in present:
            units = decision.training.get(name, ())
            if units:
                sharing = max(sum(unit in each for each in decision.training.values()) for unit in units)
                left[name].left -= tick_s * len(units) / sharing
            left[name].job = replace(left[name].job, units=decision.units[name], trains=bool(units))
            if left[name].left <= 0.0:
                slow_downs[name] = (now - left[name].arrives_s) / jobs[name][1]
                del left[name]
    return slow_downs


few = settings(max_examples=20)
lengths = st.lists(st.tuples(st.floats(0.0, 200.0), st.integers(20, 200)), min_size=1, max_size=8)


@few
@given(lengths)
def test_fair_turns_on_one_unit_are_never_worse_than_training_at_the_same_time(rows: list[tuple[float, int]]) -> None:
    jobs = {f"job{k}": (0.0, steps) for k, (_, steps) in enumerate(rows)}
    assert max(simulate("fair", jobs, 1).values()) <= 1.1 * max(simulate("one_unit", jobs, 1).values())


@few
@given(lengths, st.integers(1, 4))
def test_every_job_of_a_fleet_ends(rows: list[tuple[float, int]], count: int) -> None:
    """The work that is left when a job arrives bounds the time in which it must end."""
    jobs = {f"job{k}": row for k, row in enumerate(rows)}
    work_s = sum(steps for _, steps in rows) + 10.0 * len(rows)
    for policy in POLICIES:
        for name, slow_down in simulate(policy, jobs, count).items():
            assert slow_down * jobs[name][1] <= work_s


def test_fair_turns_serve_the_mix_of_the_paper_better_than_both_baselines() -> None:
    """Five trainings of different lengths on two units."""
    jobs = {name: (0.0, steps) for name, steps in zip("abcde", (260, 350, 120, 340, 150), strict=True)}
    largest = {policy: max(simulate(policy, jobs, 2).values()) for policy in POLICIES}
    assert largest["fair"] < 0.8 * min(largest["even"], largest["one_unit"]), largest
