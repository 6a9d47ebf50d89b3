"""The bound on launched jobs that a more important frame could overtake, on a fake GPU.

On a real GPU: test/gpu/engine/test_priority_cuda.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_fakes import WAIT, FakeClock, Recorder, check_accounts, frame, task, until
from fake_gpu import DEVICE, Event, FakeGpu
from hypothesis import given
from hypothesis import strategies as st

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.engine import DnnTask, DropReason, Engine, Frame
from multi_dnn_ros.engine.job import Inference, Item, Job
from multi_dnn_ros.engine.policies import POLICIES, EarliestDeadlineFirst, Policy, make_policy
from multi_dnn_ros.engine.queue import JobQueue

JOBS = 4
AGING = 50


class OnDevice(Frame):
    def tensor(self, device: torch.device) -> torch.Tensor:
        return torch.zeros(1)


class Launches:
    """Records each launch: DNN, number of unfinished launches of other low DNNs at that time, and whether all jobs were
    one launch.
    """

    def __init__(self, gpu: FakeGpu, job_s: float) -> None:
        self._gpu = gpu
        self._job_s = job_s
        self._lock = threading.Lock()
        self._unfinished: list[tuple[str, float]] = []
        self.all: list[tuple[str, int, bool]] = []

    def task(self, name: str, **kwargs: object) -> DnnTask:
        def stage(jobs: int) -> Stage:
            def run(carried: Tensors) -> Tensors:
                with self._lock:
                    now = time.perf_counter()
                    self._unfinished = [(dnn, until) for dnn, until in self._unfinished if until > now]
                    unfinished = sum(dnn.startswith("low") for dnn, _ in self._unfinished if dnn != name)
                    self.all.append((name, unfinished, jobs == JOBS))
                    self._gpu.launch(jobs * self._job_s)
                    self._unfinished.append((name, self._gpu.busy_until()))
                return carried

            return run

        return DnnTask(
            name, (name,), lambda image: (image,), (stage(1),) * JOBS, lambda outputs, size: None,
            single_launch={1: stage(JOBS)}, **kwargs,
        )  # fmt: skip


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def offer(engine: Engine, *cameras: str) -> None:
    for camera in cameras:
        engine.offer(OnDevice(camera, 0, np.zeros((2, 2, 3), np.uint8)))


LOW = [f"low{number}" for number in range(5)]


@pytest.mark.parametrize("bound", [1, 2, 3, None])
def test_launched_and_unfinished_jobs_are_bounded(
    gpu: FakeGpu, recorder: Recorder, start: Callable[..., Engine], bound: int | None
) -> None:
    """Each job is then a separate launch, and every frame has a result."""
    launches = Launches(gpu, 2e-3 if bound else 0.05)
    tasks = [launches.task("high", priority=1), *map(launches.task, LOW)]
    engine = start(*tasks, workers=1, device=DEVICE, policy="priority", max_launched=bound, aging_ns=10**12)
    for _ in range(3):
        offer(engine, *LOW)
        assert engine.wait_idle(WAIT)
    assert len(recorder.results) == 3 * len(LOW)
    check_accounts(engine)
    max_unfinished = max(unfinished for _, unfinished, _ in launches.all) + 1
    if bound is None:
        assert launches.all[0][2]
        assert max_unfinished == len(LOW)
    else:
        assert max_unfinished <= bound
        assert not any(single_launch for _, _, single_launch in launches.all)
        assert len(launches.all) == 3 * len(LOW) * JOBS


def test_a_more_important_frame_waits_for_no_launched_job(
    gpu: FakeGpu, recorder: Recorder, start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is launched at once, with all of its jobs, while the maximum number of other jobs is unfinished."""
    launches, endless, released = Launches(gpu, 1e-3), Launches(gpu, 1e3), threading.Event()
    synchronize = Event.synchronize

    def until_the_end(event: Event) -> None:
        if event.at > time.perf_counter() + 100.0:
            assert released.wait(WAIT)
        else:
            synchronize(event)

    monkeypatch.setattr(Event, "synchronize", until_the_end)
    important = [launches.task(name, priority=1) for name in ("high", "higher")]
    engine = start(
        *important,
        *map(endless.task, LOW),
        workers=1,
        device=DEVICE,
        policy="priority",
        max_launched=2,
        aging_ns=10**12,
    )
    offer(engine, *LOW)
    until(lambda: len(endless.all) == 2)
    for count in range(1, 4):
        offer(engine, "high", "higher")
        recorder.wait(lambda count=count: len(recorder.results) == 2 * count)
    assert {name for name, _, single_launch in launches.all if single_launch} == {"high", "higher"}
    assert len(launches.all) == 6
    assert len(endless.all) == 2
    released.set()


@pytest.mark.parametrize("policy", POLICIES)
def test_frames_of_equal_priority_are_one_launch(
    gpu: FakeGpu, recorder: Recorder, start: Callable[..., Engine], policy: str
) -> None:
    launches = Launches(gpu, 0.1)
    # All frames arrive at the same time: under edf a later frame would be due later and run job by job.
    engine = start(
        *map(launches.task, LOW), workers=1, device=DEVICE, policy=policy, max_launched=1, clock=lambda: 10**9
    )
    offer(engine, *LOW)
    recorder.wait(lambda: len(recorder.results) == len(LOW))
    assert [each[1:] for each in launches.all] == [(number, True) for number in range(len(LOW))]


def test_changing_a_priority_changes_which_dnn_is_bounded(
    gpu: FakeGpu, recorder: Recorder, start: Callable[..., Engine]
) -> None:
    launches = Launches(gpu, 1e-3)
    tasks = [launches.task("important"), *map(launches.task, LOW)]
    engine = start(*tasks, workers=1, device=DEVICE, policy="priority", max_launched=1, aging_ns=10**12)
    single_launch = []
    for priority in (0, 1, 0):
        engine.update("important", priority=priority)
        launches.all.clear()
        offer(engine, *LOW)
        assert engine.wait_idle(WAIT)
        single_launch.append({each[2] for each in launches.all})
    assert single_launch == [{True}, {False}, {True}]


def test_failing_kernels_lose_only_their_frame(
    gpu: FakeGpu, recorder: Recorder, start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = Launches(gpu, 1e-3)
    synchronize, failures = Event.synchronize, iter([True])

    def fail_once(event: Event) -> None:
        synchronize(event)
        if next(failures, False):
            raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(Event, "synchronize", fail_once)
    tasks = [launches.task("high", priority=1), launches.task("low")]
    engine = start(*tasks, workers=1, device=DEVICE, policy="priority", max_launched=1, aging_ns=10**12)
    for _ in range(2):
        offer(engine, "low")
        assert engine.wait_idle(WAIT)
    assert [drop.reason for drop in recorder.drops] == [DropReason.DNN_ERROR]
    assert recorder.drops[0].message.startswith("job 1: RuntimeError: CUDA error")
    assert len(recorder.results) == 1
    assert len(launches.all) == 1 + JOBS
    check_accounts(engine)


def test_the_engine_stops_with_jobs_launched_and_others_queued(
    gpu: FakeGpu, recorder: Recorder, start: Callable[..., Engine]
) -> None:
    launches = Launches(gpu, 0.02)
    tasks = [launches.task("high", priority=1), *map(launches.task, LOW)]
    engine = start(*tasks, workers=1, device=DEVICE, policy="priority", max_launched=2)
    offer(engine, *LOW)
    until(lambda: len(launches.all) >= 3)
    assert engine.stop(WAIT) == []
    assert {drop.reason for drop in recorder.drops} == {DropReason.SHUTDOWN}
    assert len(recorder.drops) + len(recorder.results) == len(LOW)
    check_accounts(engine)


def test_max_launched_of_zero_is_rejected() -> None:
    with pytest.raises(ValueError, match="max_launched is 0; must be at least 1, or None"):
        Engine([task()], on_result=print, max_launched=0)


# -- the queue by itself


def job(dnn: DnnTask, clock: FakeClock, index: int = 0) -> Job:
    waiting = frame()
    waiting.received_ns = clock.now
    return Job(Inference(dnn, (Item(waiting),), dnn.priority, dnn.deadline_ns, 0, lambda inference: None), index)


@given(
    policy=st.sampled_from(list(POLICIES)),
    settings=st.lists(st.tuples(st.integers(-3, 3), st.none() | st.integers(0, 300)), min_size=2, max_size=5),
    waited=st.integers(1, 400),
)
def test_may_be_overtaken_if_a_frame_arriving_now_would_run_first(
    policy: str, settings: list[tuple[int, int | None]], waited: int
) -> None:
    clock = FakeClock()
    ordering: Policy = make_policy(policy, AGING) if policy != "edf" else EarliestDeadlineFirst(200)
    tasks = [task(f"dnn{n}", priority=priority, deadline_ns=due) for n, (priority, due) in enumerate(settings)]
    waiting = job(tasks[0], clock)
    clock.now += waited
    overtaken = False
    for other in tasks[1:]:
        queue = JobQueue(ordering, FakeClock())
        queue.put(waiting)
        waiting.queued_ns = clock.now - waited
        late = job(other, clock)
        late.queued_ns = clock.now
        overtaken |= ordering.key(late) < ordering.key(waiting)
    queue = JobQueue(ordering, clock)
    queue.bound_launches(tasks)
    assert queue.may_be_overtaken(waiting) == overtaken
    assert queue.may_continue(waiting) != overtaken


def test_launching_callers_get_only_jobs_that_cannot_be_overtaken() -> None:
    clock = FakeClock()
    queue = JobQueue(make_policy("priority", AGING), clock)
    low, high = task("low"), task("high", priority=10)
    queue.bound_launches([low, high])
    taken: list[tuple[str, str]] = []
    lock = threading.Condition()

    def take(waits: bool) -> None:
        while (found := queue.get(waits_for_kernels=waits)) is not None:
            with lock:
                taken.append((found.inference.task.name, "waits" if waits else "launches"))
                lock.notify()
            queue.job_done()

    threads = [threading.Thread(target=take, args=(waits,)) for waits in (True, False)]
    for thread in threads:
        thread.start()
    for number, dnn in enumerate((low, low, low), start=1):
        queue.put(job(dnn, clock))
        with lock:
            assert lock.wait_for(lambda number=number: len(taken) == number, WAIT)
    queue.close()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    assert taken == [("low", "waits")] * 3


def test_with_all_waiting_callers_busy_only_an_important_job_is_taken() -> None:
    clock = FakeClock()
    queue = JobQueue(make_policy("priority", AGING), clock)
    low, high = task("low"), task("high", priority=10)
    queue.bound_launches([low, high])
    queue.put(job(low, clock))
    assert queue.get(waits_for_kernels=True) is not None  # and its kernels run
    queue.put(job(low, clock))
    found: list[Job | None] = []
    launcher = threading.Thread(target=lambda: found.append(queue.get(waits_for_kernels=False)))
    launcher.start()
    queue.put(job(high, clock))
    launcher.join(WAIT)
    assert [each.inference.task.name for each in found if each is not None] == ["high"]
    assert len(queue) == 1
    clock.now += 10 * AGING  # has waited for so long that no frame that comes now is more important
    rest = queue.get(job_done=True, waits_for_kernels=False)
    assert rest is not None
    assert rest.inference.task is low


def test_a_changed_priority_wakes_the_caller_that_may_now_take_the_next_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job could not be overtaken when it was queued, so no caller that waits for kernels was woken for it."""
    clock = FakeClock()
    queue = JobQueue(make_policy("priority", AGING), clock)
    low, high = task("low"), task("high", priority=10)
    queue.bound_launches([low, high])
    waits, wait = threading.Event(), queue._bounded.wait

    def watched() -> bool:
        waits.set()  # the caller holds the queue's lock until it waits
        return wait()

    monkeypatch.setattr(queue._bounded, "wait", watched)
    found: list[Job | None] = []
    waiting = threading.Thread(target=lambda: found.append(queue.get(waits_for_kernels=True)), daemon=True)
    waiting.start()
    assert waits.wait(WAIT)
    first = job(high, clock)
    queue.put(first)
    queue.bound_launches([replace(low, priority=20), high])
    assert queue.may_be_overtaken(first)
    waiting.join(WAIT)
    assert found == [first]
