"""JobQueue.exchange equals put followed by get, in one step."""

from __future__ import annotations

import threading

from engine_fakes import WAIT, FakeClock, frame, task
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.engine.job import Inference, Item, Job
from multi_dnn_ros.engine.policies import Fifo, make_policy
from multi_dnn_ros.engine.queue import JobQueue

DNN = task(jobs=2)


def job(number: int, priority: int = 0, index: int = 0) -> Job:
    waiting = frame()
    waiting.context = number
    return Job(Inference(DNN, (Item(waiting),), priority, None, 0, done=lambda inference: None), index)


def number_of(taken: Job | None) -> int:
    assert taken is not None
    context = taken.inference.items[0].frame.context
    assert isinstance(context, int)
    return context


@given(st.sampled_from(["fifo", "priority"]), st.lists(st.integers(-3, 3), max_size=6), st.integers(-3, 3))
def test_exchange_returns_the_job_that_is_first(policy: str, waiting: list[int], own_priority: int) -> None:
    taken = []
    for in_one_step in (True, False):
        queue = JobQueue(make_policy(policy, 50), FakeClock())
        queue.put(job(-1, own_priority))
        assert number_of(queue.get()) == -1
        for number, priority in enumerate(waiting):
            queue.put(job(number, priority))
        successor = job(-1, own_priority, 1)
        if in_one_step:
            first = queue.exchange(successor)
            assert first is not None
        else:
            queue.put(successor)
            first = queue.get(job_done=True)
        taken.append([number_of(first), *(number_of(queue.get()) for _ in waiting)])
    assert taken[0] == taken[1]


def test_exchange_prefers_the_successor_among_equal_keys_only() -> None:
    clock = FakeClock()
    queue = JobQueue(make_policy("priority", 50), clock)
    successor = job(1, index=1)
    successor.queued_ns = clock.now
    queue.put(job(0))
    clock.now += 100  # its position in the queue is that of the previous job
    assert queue.may_continue(successor)
    queue.put(job(2, priority=3))
    assert not queue.may_continue(successor)
    assert [number_of(queue.get()) for _ in range(2)] == [2, 0]
    assert queue.may_continue(successor)
    queue.close()
    assert not queue.may_continue(successor)


def test_a_closed_queue_leaves_the_job_with_the_caller() -> None:
    queue = JobQueue(Fifo(), FakeClock())
    queue.close()
    assert queue.exchange(job(0)) is None
    assert len(queue) == 0


def test_exchange_waits_while_the_queue_is_paused() -> None:
    """A worker that always has a successor still makes way for a pause."""
    queue = JobQueue(Fifo(), FakeClock())
    queue.put(job(0))
    stopping = threading.Event()
    steps: list[Job | None] = []

    def work() -> None:
        queue.get()
        while not stopping.is_set():
            steps.append(queue.exchange(job(0, index=1)))
        queue.close()

    worker = threading.Thread(target=work)
    worker.start()
    with queue.paused(WAIT):
        before = len(steps)
        stopping.set()
        assert len(queue) <= 1  # takes the queue's lock, as an exchange would
        assert len(steps) == before
    worker.join(WAIT)
    assert not worker.is_alive()
    assert all(number_of(step) == 0 for step in steps)
