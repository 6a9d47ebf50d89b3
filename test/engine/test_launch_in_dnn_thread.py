"""A DNN's thread runs its jobs itself: on a fake GPU a single DNN while the queue is idle, on a CPU in a free slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from engine_fakes import WAIT, FakeClock, Gate, Recorder, check_accounts, frame, stop_while_one_hangs, task, until
from fake_gpu import DEVICE, FakeGpu, Stream

from multi_dnn_ros.backends import Tensors
from multi_dnn_ros.engine import DropReason, Engine, Frame
from multi_dnn_ros.engine.dnn_frames import FailureLimits
from multi_dnn_ros.engine.dnn_thread import DnnThread
from multi_dnn_ros.engine.job import Inference, Item, Job
from multi_dnn_ros.engine.policies import make_policy
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.engine.reports import Callbacks
from multi_dnn_ros.engine.runner import Runner

CPU = torch.device("cpu")
JOBS = 3


class OnDevice(Frame):
    def tensor(self, device: torch.device) -> torch.Tensor:
        return torch.full((2, 3, 3), self.stamp_ns, dtype=torch.uint8)


def on_device(value: int = 0, camera: str = "front") -> OnDevice:
    return OnDevice(camera, value, np.zeros((2, 3, 3), np.uint8))


def thread_name() -> str:
    return threading.current_thread().name


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


class Setup:
    """One DNN's thread and a queue; the test takes jobs in place of the workers."""

    def __init__(self) -> None:
        self.launched: list[tuple[int, str]] = []
        self.on_job: Callable[[int], None] = lambda index: None
        self.recorder = Recorder()
        self.queue = JobQueue(make_policy("priority", 50), FakeClock())
        self.dnn = self.thread_of("a", self._job)

    def thread_of(self, name: str, on_job: Callable[[int], None]) -> DnnThread:
        return DnnThread(
            task(name, jobs=JOBS, on_job=on_job),
            self.queue,
            FailureLimits(),
            Callbacks(**self.recorder.callbacks()),
            FakeClock(),
            self.runner(),
        )

    def runner(self) -> Runner:
        stream = Stream()
        return Runner(self.queue, DEVICE, lambda dnn: stream)  # type: ignore[arg-type, return-value]

    def _job(self, index: int) -> None:
        self.launched.append((index, thread_name()))
        self.on_job(index)

    def other(self, priority: int = 0) -> Job:
        return Job(Inference(self.dnn.task, (Item(frame()),), priority, None, 0, lambda inference: None), 0)

    def run_as_worker(self, job: Job | None) -> None:
        assert job is not None
        with torch.inference_mode():
            assert self.runner().run(job) is None


@pytest.fixture
def setup() -> Iterator[Setup]:
    setup = Setup()
    setup.dnn.start()
    yield setup
    setup.queue.close()
    setup.dnn.close(drop_waiting=True)
    setup.dnn.abandon()
    setup.dnn.join(WAIT)
    assert not setup.dnn.is_alive()


def test_with_an_idle_queue_the_dnn_launches_all_its_jobs(setup: Setup) -> None:
    """One frame after another; the queue stays empty and can be paused."""
    for value in range(3):
        setup.dnn.offer(on_device(value))
        setup.recorder.wait(lambda value=value: len(setup.recorder.results) == value + 1)
    assert setup.launched == [(index, "dnn-a") for _ in range(3) for index in range(JOBS)]
    assert [result.output[0] for result in setup.recorder.results] == [3.0, 4.0, 5.0]
    assert len(setup.queue) == 0
    with setup.queue.paused(WAIT):
        pass


@pytest.mark.parametrize("busy", ["waits", "runs"])
def test_with_a_queued_or_running_job_the_queue_decides(setup: Setup, busy: str) -> None:
    setup.queue.put(setup.other(priority=-1))
    if busy == "runs":
        assert setup.queue.get() is not None
    setup.dnn.offer(on_device(4))
    until(lambda: len(setup.queue) == (2 if busy == "waits" else 1))
    assert setup.launched == []
    setup.run_as_worker(setup.queue.get())
    setup.recorder.wait(lambda: setup.recorder.results)
    assert setup.launched == [(index, thread_name()) for index in range(JOBS)]


def test_no_dnn_launches_while_the_queue_is_paused(setup: Setup) -> None:
    with setup.queue.paused(WAIT):
        setup.dnn.offer(on_device())
        until(lambda: len(setup.queue) == 1)
        assert setup.launched == []
    setup.run_as_worker(setup.queue.get())
    setup.recorder.wait(lambda: setup.recorder.results)


def test_pausing_waits_for_a_launching_dnn(setup: Setup) -> None:
    def hold(index: int) -> None:
        with pytest.raises(TimeoutError, match="a job did not end"), setup.queue.paused(0.01):
            raise AssertionError

    setup.on_job = hold
    setup.dnn.offer(on_device())
    setup.recorder.wait(lambda: setup.recorder.results)
    with setup.queue.paused(WAIT):
        pass


def test_dnns_do_not_launch_concurrently(setup: Setup) -> None:
    gate = Gate()
    other = setup.thread_of("b", lambda index: gate())
    other.start()
    other.offer(on_device())
    gate.wait_for_job()
    setup.dnn.offer(on_device())
    setup.run_as_worker(setup.queue.get())
    assert {thread for _, thread in setup.launched} == {thread_name()}
    gate.open()
    setup.recorder.wait(lambda: len(setup.recorder.results) == 2)
    other.close(drop_waiting=True)
    other.join(WAIT)
    assert not other.is_alive()


def test_a_worker_launches_while_the_dnn_has_results_to_decode(setup: Setup) -> None:
    """A slow launch must not delay the decoding."""

    def offer_next(index: int) -> None:
        setup.on_job = lambda index: None
        setup.dnn.offer(on_device(1))

    setup.on_job = offer_next
    setup.dnn.offer(on_device(0))
    second = setup.queue.get()
    setup.recorder.wait(lambda: len(setup.recorder.results) == 1)
    setup.run_as_worker(second)
    setup.recorder.wait(lambda: len(setup.recorder.results) == 2)
    assert [thread for _, thread in setup.launched] == ["dnn-a"] * JOBS + [thread_name()] * JOBS


@pytest.mark.parametrize("priority", [-1, 0, 1])
def test_jobs_arriving_during_a_launch_keep_their_order(setup: Setup, priority: int) -> None:
    """A more important job runs before the frame's remaining ones, which are queued; an equal one after them."""
    other = setup.other(priority)

    def put_other(index: int) -> None:
        setup.on_job = lambda index: None
        setup.queue.put(other)

    setup.on_job = put_other
    setup.dnn.offer(on_device(7))
    if priority > 0:
        until(lambda: len(setup.queue) == 2)
        assert setup.launched == [(0, "dnn-a")]
        assert setup.queue.get() is other
        setup.run_as_worker(setup.queue.get(job_done=True))
    setup.recorder.wait(lambda: setup.recorder.results)
    thread = thread_name() if priority > 0 else "dnn-a"
    assert setup.launched == [(0, "dnn-a"), (1, thread), (2, thread)]
    assert setup.recorder.results[0].output[0] == 7.0 + JOBS
    if priority <= 0:
        assert setup.queue.get() is other


@pytest.mark.parametrize("error", [ValueError("a layer's mistake"), SystemExit()])
def test_a_failing_launch_loses_only_its_inference(setup: Setup, error: BaseException) -> None:
    def fail(index: int) -> None:
        setup.on_job = lambda index: None
        raise error

    setup.on_job = fail
    setup.dnn.offer(on_device(1))
    setup.recorder.wait(lambda: setup.recorder.failures)
    setup.dnn.offer(on_device(2))
    setup.recorder.wait(lambda: setup.recorder.results)
    assert [(drop.frame.stamp_ns, drop.reason) for drop in setup.recorder.drops] == [(1, DropReason.DNN_ERROR)]
    assert setup.recorder.drops[0].message.startswith(f"job 1: {type(error).__name__}")
    assert setup.launched == [(0, "dnn-a")] + [(index, "dnn-a") for index in range(JOBS)]


def test_closing_the_queue_during_a_launch_loses_the_rest(setup: Setup) -> None:
    setup.on_job = lambda index: setup.queue.close() and None
    setup.dnn.offer(on_device())
    setup.recorder.wait(lambda: setup.recorder.drops)
    assert setup.launched == [(0, "dnn-a")]
    assert [drop.reason for drop in setup.recorder.drops] == [DropReason.SHUTDOWN]


def test_no_dnn_launches_on_a_closed_queue() -> None:
    setup = Setup()
    setup.queue.close()
    assert not setup.queue.try_acquire(setup.other())


def test_launches_use_stream_and_inference_mode_but_callbacks_do_not(gpu: FakeGpu, recorder: Recorder) -> None:
    seen: list[tuple[str, str, bool]] = []

    def see(what: str) -> None:
        seen.append((what, thread_name(), torch.is_inference_mode_enabled()))

    def on_job(index: int) -> None:
        see("job")
        gpu.launch(0.001)

    def decode(outputs: Tensors, size: tuple[int, int]) -> None:
        see("decode")

    callbacks = recorder.callbacks()
    on_result = callbacks.pop("on_result")

    def receive(result: object) -> None:
        see("result")
        on_result(result)

    dnn = task("a", jobs=1, on_job=on_job, decode=decode)
    engine = Engine([dnn], device=DEVICE, workers=1, on_result=receive, **callbacks)
    engine.start()
    engine.offer(on_device())
    recorder.wait(lambda: recorder.results)
    assert engine.stop(WAIT) == []
    assert seen == [("job", "dnn-a", True), ("decode", "dnn-a", False), ("result", "dnn-a", False)]
    assert engine.stream_of(("a", 0, 0)).until > 0.0  # type: ignore[attr-defined]
    assert engine.launch_ns() > 0


def test_a_launch_that_hangs_does_not_keep_the_engine_from_stopping(
    start: Callable[..., Engine], recorder: Recorder
) -> None:
    gate = Gate()
    engine = start(task(jobs=2, on_job=lambda index: gate()), workers=1, device=DEVICE)
    engine.offer(on_device())
    gate.wait_for_job()
    stop_while_one_hangs(engine, "dnn-a", drain=True)
    assert [drop.reason for drop in recorder.drops] == [DropReason.SHUTDOWN]
    gate.open()
    check_accounts(engine)
    assert engine.stop(WAIT) == []


def test_with_several_dnns_a_worker_launches(start: Callable[..., Engine], recorder: Recorder) -> None:
    launched: list[str] = []
    tasks = [task(name, jobs=JOBS, on_job=lambda index: launched.append(thread_name())) for name in ("a", "b")]
    engine = start(*tasks, workers=1, device=DEVICE)
    engine.offer(on_device())
    recorder.wait(lambda: len(recorder.results) == 2)
    assert launched == ["worker-0"] * 2 * JOBS


def test_on_a_cpu_the_dnn_runs_its_jobs_in_a_free_slot(start: Callable[..., Engine], recorder: Recorder) -> None:
    launched: list[str] = []
    engine = start(task(jobs=JOBS, on_job=lambda index: launched.append(thread_name())), workers=1)
    for value in range(3):
        engine.offer(frame(value=value))
        recorder.wait(lambda value=value: len(recorder.results) == value + 1)
    assert launched == ["dnn-a"] * 3 * JOBS
    assert engine.launch_ns() > 0


@pytest.mark.parametrize("workers", [1, 2])
def test_on_a_cpu_at_most_workers_jobs_run_at_once(start: Callable[..., Engine], workers: int) -> None:
    """Four DNNs whose threads could all run jobs, as could the workers. Every slot is used, whoever runs the jobs."""
    lock = threading.Lock()
    running, max_running = 0, 0

    def job(index: int) -> None:
        nonlocal running, max_running
        with lock:
            running += 1
            max_running = max(max_running, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    engine = start(*(task(name, jobs=JOBS, cameras=(name,), on_job=job) for name in "abcd"), workers=workers)
    for value in range(10):
        for name in "abcd":
            engine.offer(frame(name, value))
        assert engine.wait_idle(WAIT)
    assert max_running == workers


def test_on_a_cpu_the_queue_decides_between_the_jobs_of_the_dnn_thread(start: Callable[..., Engine]) -> None:
    """A more important frame that arrives while a DNN's thread runs a job comes before that frame's next job."""
    gate, ran = Gate(), []

    def job(name: str) -> Callable[[int], None]:
        def run(index: int) -> None:
            ran.append(f"{name} {index}")
            if len(ran) == 1:
                gate()

        return run

    low = task("low", jobs=2, cameras=("low",), on_job=job("low"))
    high = task("high", jobs=2, cameras=("high",), on_job=job("high"), priority=1)
    engine = start(low, high, workers=1, policy="priority")
    engine.offer(frame("low", 1))
    gate.wait_for_job()
    engine.offer(frame("high", 1))
    until(lambda: len(engine._queue) == 1)
    gate.open()
    assert engine.wait_idle(WAIT)
    assert ran == ["low 0", "high 0", "high 1", "low 1"]


def test_on_a_cpu_a_queued_job_gets_the_slot_of_the_dnn_thread(start: Callable[..., Engine]) -> None:
    """The slot is not free while the thread of the first DNN runs, so the second one's job waits for it."""
    gate, ran = Gate(), []

    def job(index: int) -> None:
        ran.append(thread_name())
        if len(ran) == 1:
            gate()

    engine = start(*(task(name, cameras=(name,), jobs=1, on_job=job) for name in "ab"), workers=1)
    engine.offer(frame("a", 1))
    gate.wait_for_job()
    engine.offer(frame("b", 1))
    until(lambda: len(engine._queue) == 1)
    assert ran == ["dnn-a"]
    gate.open()
    assert engine.wait_idle(WAIT)
    assert ran == ["dnn-a", "worker-0"]
