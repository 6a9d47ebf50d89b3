"""The order of jobs by policy, tested on the queue and through an engine."""

from __future__ import annotations

import threading

import pytest
from engine_fakes import WAIT, FakeClock, Gate, frame, task
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.engine import DnnTask
from multi_dnn_ros.engine.job import Inference, Item, Job
from multi_dnn_ros.engine.policies import Policy, Priority, make_policy
from multi_dnn_ros.engine.queue import JobQueue

AGING = 50


def queue_jobs(policy: Policy, arrivals: list[tuple[int, int, int | None]]) -> list[int]:
    """Queue jobs of (time, priority, deadline) before taking any; returns the order of taking."""
    clock = FakeClock()
    queue = JobQueue(policy, clock)
    for number, (at, priority, deadline) in enumerate(arrivals):
        clock.now = at
        waiting = frame(value=number % 256)
        waiting.received_ns = at
        waiting.context = number
        items = (Item(waiting),)
        queue.put(Job(Inference(task(), items, priority, deadline, at, done=lambda inference: None), 0))
    order = [queue.get().inference.items[0].frame.context for _ in arrivals]
    assert len(queue) == 0
    return order


def arrivals(**kwargs: object) -> st.SearchStrategy:
    one = st.tuples(st.integers(0, 100), st.integers(-3, 3), st.none() | st.integers(0, 500))
    return st.lists(one, min_size=1, max_size=40).map(lambda jobs: sorted(jobs, key=lambda job: job[0]))


@given(arrivals())
def test_fifo_is_the_order_of_arrival(jobs):
    assert queue_jobs(make_policy("fifo", AGING), jobs) == list(range(len(jobs)))


@given(arrivals())
def test_edf_is_the_order_of_deadlines(jobs):
    order = queue_jobs(make_policy("edf", AGING), jobs)
    due = [jobs[n][0] + (1_000_000_000 if jobs[n][2] is None else jobs[n][2]) for n in order]
    assert due == sorted(due)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(1, 500), st.lists(st.integers(0, 200), min_size=1, max_size=4)),
             min_size=1, max_size=20),
    st.data(),
)  # fmt: skip
def test_edf_with_known_times_prefers_less_slack(frames, data):
    """frames: (arrival, deadline, times of the jobs). Slack: time until the deadline minus remaining time."""
    clock = FakeClock()
    queue = JobQueue(make_policy("edf", AGING), clock)
    slack = {}
    for number, (at, deadline, times) in enumerate(frames):
        remaining = tuple(sum(times[index:]) for index in range(len(times)))
        waiting = frame()
        waiting.received_ns = at
        waiting.context = number
        timed = task(jobs=len(times), remaining_ns=remaining)
        index = data.draw(st.integers(0, len(times) - 1))
        queue.put(Job(Inference(timed, (Item(waiting),), 0, deadline, at, done=lambda inference: None), index))
        slack[number] = at + deadline - clock.now - remaining[index]
    order = [queue.get().inference.items[0].frame.context for _ in frames]
    assert order == sorted(slack, key=lambda number: (slack[number], number))


def test_a_long_dnn_starts_before_a_short_one_with_a_slightly_earlier_deadline():
    clock = FakeClock()
    queue = JobQueue(make_policy("edf", AGING), clock)

    def put(name: str, deadline: int | None, remaining: tuple[int, ...] | None, index: int = 0) -> None:
        waiting = frame()
        waiting.received_ns = clock.now
        timed = task(name, jobs=2, remaining_ns=remaining)
        queue.put(Job(Inference(timed, (Item(waiting),), 0, deadline, clock.now, done=lambda inference: None), index))

    put("short", 100, (10, 5))
    put("long", 120, (60, 30))
    put("long, second job", 120, (60, 30), 1)
    put("untimed", 100, None)
    put("without a deadline", None, (10, 5))
    order = [queue.get().inference.task.name for _ in range(5)]
    assert order == ["long", "short", "long, second job", "untimed", "without a deadline"]


def test_remaining_times_must_match_the_number_of_jobs(start):
    with pytest.raises(ValueError, match="DNN 'a' has remaining_ns of 1 jobs, but 2 stages"):
        start(task(remaining_ns=(5,)))


@given(arrivals())
def test_priority_overtakes_only_within_the_aging_time(jobs):
    order = queue_jobs(Priority(AGING), jobs)
    position = {number: index for index, number in enumerate(order)}
    for early, (early_at, early_priority, _) in enumerate(jobs):
        for late in range(early + 1, len(jobs)):
            late_at, late_priority, _ = jobs[late]
            overtakes = position[late] < position[early]
            assert overtakes == (late_at - early_at < (late_priority - early_priority) * AGING)


def test_low_priority_is_served_under_a_flood_of_high_priority():
    """High-priority jobs arrive faster than they are served; the low one is still served in bounded time."""
    clock = FakeClock()
    queue = JobQueue(Priority(AGING), clock)

    def put(priority: int) -> None:
        queue.put(Job(Inference(task(), (Item(frame()),), priority, None, 0, done=lambda inference: None), 0))

    put(0)
    begin = clock.now
    while True:
        put(5)
        put(5)
        if queue.get().inference.priority == 0:
            break
        clock.now += 1
        assert clock.now - begin < 1000, "starved"
    # 5 priority steps are worth 250 ns: jobs queued within that time run first; 2 arrive and 1 is served per ns.
    assert clock.now - begin == pytest.approx(2 * 5 * AGING, abs=2)


def test_aging_must_be_positive():
    with pytest.raises(ValueError, match="aging_ns is 0"):
        Priority(0)


class Watched:
    """A policy that counts the queued jobs."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._queued = threading.Semaphore(0)

    def key(self, job: Job) -> int:
        key = self._policy.key(job)
        self._queued.release()
        return key

    def offset_ns(self, task: DnnTask) -> int | None:
        return self._policy.offset_ns(task)

    def wait_for_job(self) -> None:
        assert self._queued.acquire(timeout=WAIT)


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fifo", ["low", "high", "urgent"]), ("priority", ["high", "urgent", "low"]), ("edf", ["urgent", "low", "high"])],
)
def test_an_engine_follows_its_policy(start, recorder, policy, order):
    gate, clock, ran = Gate(), FakeClock(), []
    watched = Watched(make_policy(policy, AGING))
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
        if name == "first":
            gate.wait_for_job()  # the only slot is taken: what comes now is ordered by the policy
        else:
            watched.wait_for_job()
    gate.open()
    recorder.wait(lambda: len(recorder.results) == 4)
    assert ran == order
