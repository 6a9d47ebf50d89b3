"""How many jobs of a frame are launched at once on a fake GPU: up to the next more important frame."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_fakes import FakeClock, frame
from fake_gpu import FakeGpu, Stream
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.engine import DnnTask
from multi_dnn_ros.engine.job import Inference, Item, Job
from multi_dnn_ros.engine.policies import POLICIES, make_policy
from multi_dnn_ros.engine.queue import JobQueue

CPU = torch.device("cpu")
JOBS = 4


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def inference(launched: list[str], *, single_launch: bool, priority: int = 0) -> Inference:
    def stage(number: int) -> Stage:
        def run(carried: Tensors) -> Tensors:
            launched.append(str(number))
            return tuple(tensor + 1 for tensor in carried)

        return run

    def all_in_one(carried: Tensors) -> Tensors:
        launched.append("all")
        return tuple(tensor + JOBS for tensor in carried)

    task = DnnTask(
        "a",
        ("front",),
        lambda image: (torch.zeros(1),),
        tuple(stage(number) for number in range(JOBS)),
        lambda outputs, size: None,
        single_launch={1: all_in_one} if single_launch else {},
    )
    return Inference(task, (Item(frame()),), priority, None, 0, done=lambda done: None)


def launch(queue: JobQueue, job: Job) -> None:
    stream: Any = Stream()
    job.run(CPU, stream, queue.may_continue)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("single_launch", [False, True])
def test_a_frame_that_cannot_be_overtaken_is_one_launch(policy: str, single_launch: bool) -> None:
    """Waiting frames of equal priority change nothing, however long they have waited."""
    clock = FakeClock()
    queue = JobQueue(make_policy(policy, 50), clock)
    launched: list[str] = []
    first = inference(launched, single_launch=single_launch)
    queue.put(Job(first, 0))
    clock.now += 1
    queue.put(Job(inference([], single_launch=single_launch), 0))
    clock.now += 1_000
    job = queue.get()
    assert job is not None
    assert job.inference is first
    launch(queue, job)
    assert launched == (["all"] if single_launch else ["0", "1", "2", "3"])
    assert job.is_last
    assert first.carried[0].item() == JOBS


@pytest.mark.parametrize("single_launch", [False, True])
def test_a_more_important_frame_runs_in_between(single_launch: bool) -> None:
    queue = JobQueue(make_policy("priority", 50), FakeClock())
    launched: list[str] = []
    queue.put(Job(inference(launched, single_launch=single_launch), 0))
    job = queue.get()
    assert job is not None
    important = Job(inference([], single_launch=single_launch, priority=1), 0)
    queue.put(important)
    launch(queue, job)
    assert (launched, job.index, job.is_last) == (["0"], 0, False)
    successor = job.successor()
    assert queue.exchange(successor) is important
    launch(queue, important)
    assert queue.get(job_done=True) is successor
    launch(queue, successor)
    assert launched == ["0", "1", "2", "3"]  # an inference that has begun is not run as a single launch
    assert successor.inference.carried[0].item() == JOBS


@given(st.lists(st.booleans(), max_size=JOBS + 1), st.booleans())
def test_each_stage_runs_once_for_any_order_of_arrivals(answers: list[bool], single_launch: bool) -> None:
    launched: list[str] = []
    job = Job(inference(launched, single_launch=single_launch), 0)
    stream: Any = Stream()
    later = iter(answers)
    while True:
        job.run(CPU, stream, lambda successor: next(later, False))
        if job.is_last:
            break
        job = job.successor()
    assert launched in (["all"], ["0", "1", "2", "3"])
    assert (launched == ["all"]) == (single_launch and answers[:1] == [True])
    assert job.inference.carried[0].item() == JOBS
