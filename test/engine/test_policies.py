"""The order of jobs by policy, and through an engine."""

from __future__ import annotations

import pytest
from engine_fakes import FakeClock, Gate, WatchedPolicy, frame, task
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.engine.inference import Inference
from multi_dnn_ros.engine.policies import POLICIES, Policy, Priority, make_policy

AGING = 50


def inference(
    at: int = 0,
    priority: int = 0,
    deadline: int | None = None,
    remaining: tuple[int, ...] | None = None,
    name: str = "a",
) -> Inference:
    waiting = frame()
    waiting.received_ns = at
    timed = task(jobs=len(remaining or (1, 1)), remaining_ns=remaining, deadline_ns=deadline, priority=priority)
    return Inference(timed, (waiting,), at)


def order_of(policy: Policy, arrivals: list[tuple[int, int, int | None]]) -> list[int]:
    """The order of jobs of (time, priority, deadline) that all wait."""
    keys = [policy.key(inference(*arrival), arrival[0]) for arrival in arrivals]
    return sorted(range(len(keys)), key=lambda number: (keys[number], number))


def arrivals(**kwargs: object) -> st.SearchStrategy:
    one = st.tuples(st.integers(0, 100), st.integers(-3, 3), st.none() | st.integers(0, 500))
    return st.lists(one, min_size=1, max_size=40).map(lambda jobs: sorted(jobs, key=lambda job: job[0]))


@given(arrivals())
def test_fifo_is_the_order_of_arrival(jobs):
    assert order_of(make_policy("fifo"), jobs) == list(range(len(jobs)))


@given(arrivals())
def test_edf_is_the_order_of_deadlines(jobs):
    order = order_of(make_policy("edf"), jobs)
    due = [jobs[n][0] + (1_000_000_000 if jobs[n][2] is None else jobs[n][2]) for n in order]
    assert due == sorted(due)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 500), st.lists(st.integers(0, 200), min_size=1, max_size=4)),
             min_size=1, max_size=20),
    st.data(),
)  # fmt: skip
def test_edf_with_known_times_prefers_less_slack(frames, data):
    """frames: (arrival, deadline, times of the jobs). Slack: time until the deadline minus remaining time."""
    policy = make_policy("edf")
    slack, keys = {}, {}
    for number, (at, deadline, times) in enumerate(frames):
        remaining = tuple(sum(times[index:]) for index in range(len(times)))
        index = data.draw(st.integers(0, len(times) - 1))
        keys[number] = policy.key(inference(at, 0, deadline, remaining), 0, index)
        slack[number] = at + deadline - remaining[index]
    assert sorted(keys, key=keys.__getitem__) == sorted(slack, key=slack.__getitem__)


def test_remaining_times_must_match_the_number_of_jobs(start):
    with pytest.raises(ValueError, match="DNN 'a' has remaining_ns of 1 jobs"):
        start(task(remaining_ns=(5,)))


@given(arrivals())
def test_priority_overtakes_only_within_the_aging_time(jobs):
    order = order_of(Priority(AGING), jobs)
    position = {number: index for index, number in enumerate(order)}
    for early, (early_at, early_priority, _) in enumerate(jobs):
        for late in range(early + 1, len(jobs)):
            late_at, late_priority, _ = jobs[late]
            overtakes = position[late] < position[early]
            assert overtakes == (late_at - early_at < (late_priority - early_priority) * AGING)


@pytest.mark.parametrize("name", list(POLICIES))
@given(
    first=st.tuples(st.integers(0, 10**9), st.integers(-3, 3), st.none() | st.integers(0, 10**9)),
    second=st.tuples(st.integers(0, 10**9), st.integers(-3, 3), st.none() | st.integers(0, 10**9)),
    now=st.integers(0, 3 * 10**9),
)
def test_two_frames_never_hold_each_other_back(name, first, second, now):
    policy = make_policy(name)
    a, b = inference(*first), inference(*second)
    assert not (policy.holds_back(a, b, now) and policy.holds_back(b, a, now))


def test_edf_holds_others_back_only_once_its_slack_is_used_up():
    policy = make_policy("edf")
    urgent, other = inference(0, 0, 100, (10, 5)), inference(0, 0, 200, (10, 5))
    assert not policy.holds_back(urgent, other, 79)
    assert policy.holds_back(urgent, other, 80)
    assert not policy.holds_back(other, urgent, 10**6)


def test_aging_must_be_positive():
    with pytest.raises(ValueError, match="aging_ns is 0"):
        Priority(0)


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fifo", ["low", "high", "urgent"]), ("priority", ["high", "urgent", "low"]), ("edf", ["urgent", "low", "high"])],
)
def test_an_engine_follows_its_policy(start, recorder, policy, order):
    gate, clock, ran = Gate(), FakeClock(), []
    watched = WatchedPolicy(make_policy(policy))
    cameras = {name: (f"{name}_camera",) for name in ("first", "low", "high", "urgent")}
    engine = start(
        task("first", jobs=1, cameras=cameras["first"], on_job=lambda index: gate()),
        task("low", jobs=1, cameras=cameras["low"], on_job=lambda _: ran.append("low"), deadline_ns=500),
        task("high", jobs=1, cameras=cameras["high"], on_job=lambda _: ran.append("high"), priority=9),
        task(
            "urgent",
            jobs=1,
            cameras=cameras["urgent"],
            on_job=lambda _: ran.append("urgent"),
            priority=1,
            deadline_ns=5,
        ),
        workers=1,
        policy=watched,
        clock=clock,
    )
    for name in cameras:
        engine.offer(frame(f"{name}_camera"))
        clock.now += 1
        watched.wait_for_jobs()
        if name == "first":
            gate.wait_for_job()  # the only slot is taken: what comes now is ordered by the policy
    gate.open()
    recorder.wait(lambda: len(recorder.results) == 4)
    assert ran == order
