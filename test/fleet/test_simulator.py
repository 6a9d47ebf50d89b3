"""The prediction of contention, compared with a simulation of every step, and the simulated fleets."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import five_trainings
import pytest
from five_trainings import CHANGE_S, PERIOD_S, TIME_SLICE_S, five_jobs

from multi_dnn_ros.fleet.contention import JobLoad, alone_s, predict
from multi_dnn_ros.fleet.policy_result import PolicyResult
from multi_dnn_ros.fleet.shares import Shares, used
from multi_dnn_ros.fleet.sharing import POLICIES
from multi_dnn_ros.fleet.simulator import Fleet, SimulatedJob, simulate
from multi_dnn_ros.fleet.slowdown import Progress
from multi_dnn_ros.fleet.step_times import Interconnect, NetworkTimes, StepTime

LINK = Interconnect(latency_us=50, bandwidth_gb_s=100)


def network(fixed_ms: float, image_ms: float, idle_ms: float, megabytes: int = 50) -> NetworkTimes:
    rows = tuple(
        StepTime(batch=n, busy_ms=fixed_ms + image_ms * n, step_ms=fixed_ms + image_ms * n + idle_ms, samples=1)
        for n in (1, 10, 100)
    )
    return NetworkTimes(
        model=f"{fixed_ms}-{image_ms}-{idle_ms}", gradient_bytes=megabytes * 1_000_000, steps=rows
    )  # fmt: skip


def every_step(
    loads: dict[str, JobLoad], allocation: dict[str, Shares], units: int, seconds: float
) -> dict[str, float]:
    """Step times by processor sharing in small time slices: computing parts get equal slices of a unit, then a job
    waits for its slowest part, exchanges gradients and is idle.
    """
    rng = random.Random(0)
    left = {job: {} for job in loads}  # type: dict[str, dict[int, float]]
    pause = {job: rng.random() * 0.01 for job in loads}
    steps = dict.fromkeys(loads, 0)
    slice_s = 2e-5
    for _ in range(int(seconds / slice_s)):
        for unit in range(units):
            here = [job for job in loads if left[job].get(unit, 0.0) > 0.0]
            for job in here:
                left[job][unit] -= slice_s / len(here)
        for job, load in loads.items():
            if left[job]:
                if max(left[job].values()) <= 0.0:
                    left[job] = {}
                    steps[job] += 1
                    count = len(used(allocation[job]))
                    pause[job] = load.times.at(1)[1] + LINK.all_reduce_s(count, load.times.gradient_bytes)
            else:
                pause[job] -= slice_s
                if pause[job] <= 0.0:
                    left[job] = {
                        unit: load.times.at(load.batch * allocation[job][unit] / 10)[0]
                        for unit in used(allocation[job])
                    }
    return {job: seconds / count for job, count in steps.items()}


@pytest.mark.parametrize(
    "allocation",
    [
        {"a": (10, 0), "b": (10, 0), "c": (0, 10)},
        {"a": (5, 5), "b": (5, 5), "c": (5, 5)},
        {"a": (2, 8), "b": (10, 0), "c": (10, 0)},
    ],
)
def test_predicted_steps_are_those_of_time_slices_within_15_percent(allocation: dict[str, Shares]) -> None:
    loads = {
        "a": JobLoad(network(1.0, 0.1, 1.0), 100),
        "b": JobLoad(network(2.0, 0.05, 0.5), 100),
        "c": JobLoad(network(0.5, 0.2, 3.0), 60),
    }
    predicted = predict(loads, allocation, 2, LINK).step_s
    simulated = every_step(loads, allocation, 2, 1.5)
    assert predicted == pytest.approx(simulated, rel=0.15)


SLICE_S = 2e-3
SPREAD = (4, 3, 3)
MIXED: list[Shares] = [(10, 0, 0), SPREAD, (0, 5, 5), SPREAD, (0, 10, 0)]


@pytest.mark.parametrize(
    ("arrivals", "slice_s"),
    [
        ([SPREAD] * 6, 0.0),
        ([SPREAD] * 6, SLICE_S),
        ([(10, 0, 0)] * 6, 0.0),
        ([(10, 0, 0)] * 6, SLICE_S),
        # Not without time slices: a spread job that waits for a busy unit sleeps, and leaves its other units to others.
        (MIXED, SLICE_S),
    ],
)
def test_a_further_job_makes_no_job_faster(arrivals: list[Shares], slice_s: float) -> None:
    """arrivals: shares of jobs that start one after another."""
    kinds = [network(8, 0.2, 3), network(2, 0.03, 4, 240), network(5, 0.05, 8, 9)]
    loads = {f"job{k}": JobLoad(kinds[k % 3], 100) for k in range(len(arrivals))}
    before: dict[str, float] = {}
    for count in range(1, len(arrivals) + 1):
        allocation = {f"job{k}": arrivals[k] for k in range(count)}
        now = predict(loads, allocation, 3, LINK, slice_s).step_s
        assert all(now[job] >= before[job] * (1 - 1e-4) for job in before)
        before = now
    assert before["job0"] > 1.5 * predict(loads, {"job0": arrivals[0]}, 3, LINK, slice_s).step_s["job0"]


@pytest.mark.parametrize("shares", [(10, 0, 0), SPREAD, (0, 5, 5)])
def test_time_slices_do_not_change_a_single_job(shares: Shares) -> None:
    loads = {"a": JobLoad(network(8, 0.2, 3), 100)}
    plain, sliced = (predict(loads, {"a": shares}, 3, LINK, slice_s).step_s["a"] for slice_s in (0.0, SLICE_S))
    assert sliced == pytest.approx(plain)
    assert alone_s(loads["a"], 3, LINK) <= plain * (1 + 1e-9)


def test_a_short_time_slice_without_waiting_for_others_equals_none() -> None:
    """On one unit, jobs are in each other's way equally whether they sleep or poll: there is nobody to wait for."""
    loads = {name: JobLoad(network(1.0, 0.1, 2.0), 100) for name in "abc"}
    plain, sliced = (predict(loads, dict.fromkeys(loads, (10,)), 1, LINK, slice_s).step_s for slice_s in (0.0, 1e-9))
    assert sliced == pytest.approx(plain, rel=1e-3)


def test_a_spread_job_hinders_others_while_it_waits_only_with_time_slices() -> None:
    """Its part on unit 0 is small, and it waits for unit 1 most of the time."""
    loads = {"spread": JobLoad(network(0.0, 1.0, 0.0, 1), 100), "whole": JobLoad(network(0.0, 1.0, 0.0), 100)}
    allocation = {"spread": (1, 9), "whole": (10, 0)}
    assert predict(loads, allocation, 2, LINK).step_s["whole"] < 0.13
    assert predict(loads, allocation, 2, LINK, SLICE_S).step_s["whole"] == pytest.approx(0.2, rel=0.05)


def test_an_exchange_waits_longer_on_more_units() -> None:
    loads = {name: JobLoad(network(1.0, 0.0, 0.0), 100) for name in "abcd"}
    two, four = (
        predict(loads, dict.fromkeys(loads, shares), 4, LINK, SLICE_S).step_s["a"]
        for shares in ((5, 5, 0, 0), (3, 3, 2, 2))
    )
    assert four - two == pytest.approx(4 * 3 * SLICE_S, rel=0.2)  # four more steps of the ring, three other jobs


def test_equal_jobs_on_one_unit_share_it() -> None:
    loads = {name: JobLoad(network(0.0, 0.1, 0.0), 100) for name in "abcd"}
    rates = predict(loads, dict.fromkeys(loads, (10,)), 1, LINK)
    assert rates.step_s == pytest.approx(dict.fromkeys(loads, 0.04), rel=0.01)
    assert rates.use == pytest.approx([1.0], rel=0.01)


def test_times_between_measured_batches_are_interpolated_and_beyond_them_in_proportion() -> None:
    times = network(2.0, 0.1, 1.0)
    assert times.at(55) == pytest.approx((7.5e-3, 1e-3))
    assert times.at(200) == pytest.approx((24e-3, 1e-3))
    assert times.at(0.5) == times.at(1)


def test_slow_down_is_predicted_time_over_time_alone() -> None:
    assert Progress(done=50, total=100, elapsed_s=10.0, step_s=0.3, alone_s=0.1).slow_down == pytest.approx(2.5)


def jobs(count: int) -> list[SimulatedJob]:
    rng = random.Random(1)
    kinds = [network(8, 0.2, 3), network(2, 0.03, 4, 240), network(5, 0.05, 8, 9), network(15, 0.35, 6)]
    found = []
    for k in range(count):
        load = JobLoad(kinds[k % len(kinds)], 100)
        steps = round(rng.uniform(600, 1800) / alone_s(load, 1, LINK))
        found.append(SimulatedJob(f"job{k}", load, steps, k * 200.0))
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_alone_on_one_unit_is_not_slowed_down(policy: str) -> None:
    result = simulate(jobs(1), Fleet(1, LINK), policy)
    assert result.slow_downs == pytest.approx({"job0": 1.0}, rel=1e-3)
    assert result.changes == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_start_of_a_job_counts_as_running_time(policy: str) -> None:
    (job,) = jobs(1)
    alone = job.steps * alone_s(job.load, 1, LINK)
    result = simulate([replace(job, start_s=30.0)], Fleet(1, LINK), policy)
    assert result.total_s == pytest.approx(alone + 30.0)
    assert result.slow_downs["job0"] == pytest.approx(1.0 + 30.0 / alone)


def test_nothing_is_decided_while_a_change_takes_effect() -> None:
    """A trial is evaluated when the job has made steps with its new shares, however long the change takes."""
    fleet = Fleet(4, LINK, period_s=30.0, change_s=20.0)
    times: list[tuple[float, str]] = []
    simulate([SimulatedJob(job.name, job.load, job.steps) for job in jobs(6)], fleet, "fair",
             lambda sample: times.append((sample.time_s, sample.reason)))  # fmt: skip
    changes = [(at, following) for (at, reason), (following, _) in pairwise(times) if reason == "algorithm"]
    gaps = [following - at for at, following in changes]
    assert max(gaps) >= 25.0
    assert all(gap == pytest.approx(5.0) or gap >= 25.0 for gap in gaps)  # 5 s: the job stays on its units


def largest(fleet: Fleet, some: list[SimulatedJob]) -> dict[str, float]:
    """The largest slow-down of each policy."""
    results = {policy: simulate(some, fleet, policy) for policy in POLICIES}
    assert all(len(result.slow_downs) == len(some) for result in results.values())
    return {policy: max(result.slow_downs.values()) for policy, result in results.items()}


def test_fair_shares_lower_the_largest_slow_down() -> None:
    crowded = largest(Fleet(4, LINK), jobs(12))
    assert crowded["fair"] < 0.6 * crowded["even"]
    at_once = [SimulatedJob(job.name, job.load, job.steps) for job in jobs(5)]
    few = largest(Fleet(4, LINK), at_once)
    assert few["fair"] < 0.85 * min(few["even"], few["one unit"])


def test_changes_end_while_the_set_of_jobs_stays() -> None:
    """No oscillation: after some periods nothing changes any more."""
    same = [SimulatedJob(job.name, job.load, job.steps * 20, 0.0) for job in jobs(5)]
    reasons: list[str] = []
    simulate(same, Fleet(3, LINK), "fair", lambda sample: reasons.append(sample.reason))
    settled = reasons[200:300]
    assert set(settled) == {"unchanged"}


@pytest.mark.parametrize(("count", "units"), [(5, 2), (8, 4), (12, 4)])
def test_turns_lower_the_largest_and_the_median_slow_down_of_jobs_that_start_at_once(count: int, units: int) -> None:
    """Two of these four networks leave a unit idle for 44 % of the time, so that the total time rises."""
    at_once = [SimulatedJob(job.name, job.load, job.steps, start_s=5.0) for job in jobs(count)]
    together, in_turns = (simulate(at_once, Fleet(units, LINK, turns=turns), "fair") for turns in (False, True))
    before, after = together.figures(), in_turns.figures()
    assert after["largest_slow_down"] < 0.85 * before["largest_slow_down"]
    assert after["median_slow_down"] < 0.95 * before["median_slow_down"]


def test_turns_with_measured_step_times_lower_every_slow_down_and_not_the_total_time() -> None:
    def simulated(policy: str, *, turns: bool) -> PolicyResult:
        fleet = Fleet(2, five_trainings.LINK, TIME_SLICE_S, PERIOD_S, CHANGE_S, turns=turns)
        return simulate(five_jobs(), fleet, policy)

    together, in_turns = (simulated("fair", turns=turns) for turns in (False, True))
    baselines = [max(simulated(policy, turns=False).slow_downs.values()) for policy in ("even", "one unit")]
    largest = max(in_turns.slow_downs.values())
    assert largest < 0.75 * max(together.slow_downs.values())
    assert largest < 0.47 * max(baselines)
    assert largest < 0.8 * min(baselines)
    assert in_turns.total_s < 1.02 * together.total_s
    assert in_turns.changes <= 4


def test_turns_lower_slow_downs_of_jobs_that_arrive() -> None:
    together, in_turns = (simulate(jobs(12), Fleet(2, LINK, turns=turns), "fair").figures() for turns in (False, True))
    assert in_turns["largest_slow_down"] < 0.85 * together["largest_slow_down"]
    assert in_turns["median_slow_down"] < 0.85 * together["median_slow_down"]


def test_baselines_do_not_train_in_turns() -> None:
    for policy in ("even", "one unit"):
        assert simulate(jobs(6), Fleet(2, LINK, turns=True), policy) == simulate(jobs(6), Fleet(2, LINK), policy)


def test_slow_downs_of_paused_jobs_include_their_waits() -> None:
    """Predicted as soon as all jobs have been placed, they are those at the end, if nothing changes meanwhile."""
    predicted: list[dict[str, float]] = []
    same = [SimulatedJob(f"job{k}", job.load, job.steps) for k in range(3) for job in jobs(1)]
    result = simulate(same, Fleet(1, LINK, turns=True), "fair", lambda sample: predicted.append(sample.slow_downs))
    assert result.slow_downs == pytest.approx({"job0": 1.0, "job1": 2.0, "job2": 3.0}, rel=1e-3)
    assert predicted[0] == pytest.approx(result.slow_downs, rel=1e-3)
    assert result.changes == 0


def test_changes_end_while_the_set_of_jobs_that_train_in_turns_stays() -> None:
    same = [SimulatedJob(job.name, job.load, job.steps * 20) for job in jobs(5)]
    reasons: list[str] = []
    simulate(same, Fleet(3, LINK, turns=True), "fair", lambda sample: reasons.append(sample.reason))
    assert set(reasons[100:150]) == {"unchanged"}


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="not one of fair, even, one unit"):
        simulate(jobs(1), Fleet(1, LINK), "none")


def test_the_median_of_an_even_number_of_jobs_is_the_mean_of_the_middle_two() -> None:
    slow_downs = {"a": 4.0, "b": 1.0, "c": 3.0, "d": 9.0}
    figures = PolicyResult("fair", slow_downs, 0.5, 100.0, 0, 0).figures()
    assert (figures["largest_slow_down"], figures["median_slow_down"]) == (9.0, 3.5)
