"""A device that fails under a DNN: its jobs are made anew once, alone on the device, then it is taken out."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
import torch
from engine_fakes import WAIT, FakeClock, Gate, WatchedLock, check_accounts, frame, task, until, waits_for

from multi_dnn_ros.backends.device_errors import is_device_failure, is_out_of_memory, memory_shortage
from multi_dnn_ros.engine import DnnTask, DropReason, queue
from multi_dnn_ros.engine.job import Inference, Item, Job
from multi_dnn_ros.engine.policies import Fifo
from multi_dnn_ros.engine.queue import JobQueue

ILLEGAL = "CUDA error: an illegal memory access was encountered"


def failing(message: str = ILLEGAL) -> DnnTask:
    def on_job(index: int) -> None:
        raise RuntimeError(message)

    return task("a", jobs=1, on_job=on_job)


def test_its_jobs_are_made_anew_and_it_serves_on(start, recorder):
    good = task("a", jobs=1)

    def rebuild(alone: AbstractContextManager[None]) -> DnnTask:
        with alone:
            return good

    engine = start(replace(failing(), rebuild=rebuild), workers=1, max_failures=1)
    engine.offer(frame(value=1))
    recorder.wait(lambda: recorder.failures)
    engine.offer(frame(value=2))
    recorder.wait(lambda: recorder.results)
    (failure,) = recorder.failures
    assert (failure.dnn, failure.consecutive, failure.disabled, failure.rebuilt) == ("a", 1, False, True)
    assert ILLEGAL in failure.message
    assert [drop.reason for drop in recorder.drops] == [DropReason.DNN_ERROR]
    assert recorder.results[0].output == (3.0, (2, 3))
    assert engine.statistics().disabled == {}
    check_accounts(engine)


def test_the_second_time_it_is_taken_out_and_the_others_serve_on(start, recorder):
    rebuilds = []

    def rebuild(alone: AbstractContextManager[None]) -> DnnTask:
        rebuilds.append(1)
        return failing()

    engine = start(replace(failing(), rebuild=rebuild), task("b", jobs=1), workers=2)
    for number in (1, 2):
        engine.offer(frame())
        recorder.wait(lambda number=number: len(recorder.failures) == number and len(recorder.results) == number)
    engine.offer(frame())
    recorder.wait(lambda: len(recorder.drops) == 3 and len(recorder.results) == 3)
    assert len(rebuilds) == 1
    assert [(f.rebuilt, f.disabled) for f in recorder.failures] == [(True, False), (False, True)]
    assert recorder.drops[2].reason is DropReason.DISABLED
    assert "device failed again after its jobs were made anew" in engine.statistics().disabled["a"]
    assert {result.dnn for result in recorder.results} == {"b"}
    check_accounts(engine)


def test_jobs_that_cannot_be_made_anew_take_it_out_at_once(start, recorder):
    def rebuild(alone: AbstractContextManager[None]) -> DnnTask:
        raise RuntimeError("the context is lost")

    engine = start(replace(failing("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), rebuild=rebuild), workers=1)
    engine.offer(frame())
    recorder.wait(lambda: recorder.failures)
    assert recorder.failures[0].disabled
    assert "cannot be made anew (RuntimeError: the context is lost)" in engine.statistics().disabled["a"]


def test_other_failures_and_memory_that_does_not_suffice_are_only_counted(start, recorder):
    def rebuild(alone: AbstractContextManager[None]) -> DnnTask:
        raise AssertionError

    messages = iter(["a layer's own mistake", "CUDA error: out of memory"])

    def on_job(index: int) -> None:
        raise RuntimeError(next(messages))

    engine = start(replace(task("a", jobs=1, on_job=on_job), rebuild=rebuild), workers=1, max_failures=2)
    for number in (1, 2):
        engine.offer(frame())
        recorder.wait(lambda number=number: len(recorder.failures) == number)
    assert [(f.consecutive, f.rebuilt, f.disabled) for f in recorder.failures] == [(1, False, False), (2, False, True)]


def test_a_frame_of_the_stages_before_does_not_count_against_those_made_anew(start, recorder):
    """Two frames are under way when the device fails: both are lost, and the DNN is rebuilt once for both."""
    gate = Gate()

    def on_job(index: int) -> None:
        gate()
        raise RuntimeError(ILLEGAL)

    good = task("a", jobs=1)
    engine = start(
        replace(task("a", jobs=1, on_job=on_job), rebuild=lambda alone: good), workers=2, in_flight=2, max_failures=1
    )
    for value in (1, 2):
        assert engine.submit(frame(value=value), WAIT)
    for _ in range(2):
        gate.wait_for_job()
    gate.open()
    assert engine.wait_idle(WAIT)
    engine.offer(frame(value=3))
    recorder.wait(lambda: recorder.results)
    assert [(f.rebuilt, f.disabled) for f in recorder.failures] == [(True, False)]
    assert [drop.reason for drop in recorder.drops] == [DropReason.DNN_ERROR] * 2
    check_accounts(engine)


def test_no_job_runs_while_jobs_are_made_anew(start, recorder, monkeypatch):
    """The rebuilding DNN waits for the other's job, and the other's next job waits for it."""
    gate, inside, leave = Gate(), threading.Event(), threading.Event()
    not_alone = threading.Event()

    def on_job(index: int) -> None:
        gate()
        if inside.is_set() and not leave.is_set():
            not_alone.set()

    def rebuild(alone: AbstractContextManager[None]) -> DnnTask:
        with alone:
            inside.set()
            assert leave.wait(WAIT)
        return task("a", jobs=1)

    other = task("b", jobs=2, cameras=("rear",), on_job=on_job)
    engine = start(replace(failing(), rebuild=rebuild), other, workers=2)
    waits = waits_for(engine._queue._calm, monkeypatch)
    engine.offer(frame("rear"))
    gate.wait_for_job()
    engine.offer(frame())
    assert waits.wait(WAIT)  # for b's first job, which is still under way
    assert not inside.is_set()
    gate.open()
    assert inside.wait(WAIT)
    engine.offer(frame("rear"))  # should b's second job have been through before
    until(lambda: len(engine._queue) > 0)
    assert not not_alone.is_set()
    leave.set()
    recorder.wait(lambda: recorder.results)
    assert not not_alone.is_set()


def test_holding_the_queue_gives_up_on_a_job_that_hangs():
    queue = JobQueue(Fifo(), FakeClock())
    queue.put(Job(Inference(task(), (Item(frame()),), 0, None, 0, lambda inference: None), 0))
    assert queue.get() is not None
    with pytest.raises(TimeoutError, match=r"a job did not end within 0.01 s"), queue.held(0.01):
        raise AssertionError
    queue.close()
    assert queue.get(ended=True) is None
    with queue.held(0.01), pytest.raises(TimeoutError, match="held by another DNN"), queue.held(0.01):
        raise AssertionError
    with queue.held(0.01):
        pass


def test_queues_of_several_engines_are_held_one_after_the_other(monkeypatch):
    """An engine that was stopped may still make jobs anew when the next one does."""
    alone = WatchedLock()
    monkeypatch.setattr(queue, "_alone", alone)
    before, after = (JobQueue(Fifo(), FakeClock()) for _ in range(2))
    entered = threading.Event()

    def hold() -> None:
        with after.held(WAIT):
            entered.set()

    waiting = threading.Thread(target=hold)
    with before.held(WAIT):
        waiting.start()
        assert alone.waits.wait(WAIT)
        assert after.put(Job(Inference(task(), (Item(frame()),), 0, None, 0, lambda inference: None), 0))
        assert after.get() is not None  # who only waits to hold its queue keeps nobody from it
        after._running -= 1
        assert not entered.is_set()
    assert entered.wait(WAIT)
    waiting.join(WAIT)
    assert not waiting.is_alive()


def test_what_a_device_raises_is_told_from_what_a_layer_raises():
    assert is_device_failure(RuntimeError(f"{ILLEGAL}\nCUDA kernel errors might be reported later"))
    assert is_device_failure(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"))
    assert not is_device_failure(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_device_failure(ValueError(ILLEGAL))
    memory = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ...")
    assert is_out_of_memory(memory)
    assert not is_device_failure(memory)
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"))
    behind = RuntimeError("operation failed due to a previous error during capture")
    behind.__context__ = memory
    assert is_out_of_memory(behind)
    assert memory_shortage(memory, torch.device("cpu"), 0) == "a request for 20.00 MiB failed"
