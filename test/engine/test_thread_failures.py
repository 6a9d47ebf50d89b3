"""Errors of callbacks and of the engine itself: lost frames are counted, and nothing fails silently."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from engine_fakes import WAIT, FakeClock, Recorder, check_accounts, frame, task

from multi_dnn_ros.engine import DropReason, Engine
from multi_dnn_ros.engine.job import Inference, Item, Job
from multi_dnn_ros.engine.policies import Fifo
from multi_dnn_ros.engine.queue import JobQueue

_CPU = torch.device("cpu")


def test_a_job_waiting_for_a_paused_queue_is_returned_once_on_close() -> None:
    queue = JobQueue(Fifo(), FakeClock())
    done: list[Inference] = []
    inference = Inference(task(), (Item(frame()),), 0, None, 0, done.append)
    assert queue.put(Job(inference, 0))
    first = queue.get()
    assert first is not None
    kept: list[Job | None] = []
    worker = threading.Thread(target=lambda: kept.append(queue.exchange(first.successor())))
    with _PausedByOther(queue):
        worker.start()
        _wait(lambda: queue._running == 0)  # the worker waits inside exchange
        given_back = queue.close()
    worker.join(WAIT)
    assert not worker.is_alive()
    assert (kept, given_back) == ([None], [])  # None: the job stays with the worker
    with queue.paused(0.01):  # the worker's job does not count as running any more
        pass


class _PausedByOther:
    """Holds the queue from another thread as soon as no job is running."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with self._queue.paused(WAIT):
            assert self._leave.wait(WAIT)

    def __enter__(self) -> None:
        self._thread.start()
        _wait(lambda: self._queue._paused)

    def __exit__(self, *error: object) -> None:
        self._leave.set()
        self._thread.join(WAIT)


def _wait(condition: Callable[[], object]) -> None:
    waited = threading.Event()
    for _ in range(int(WAIT * 1000)):
        if condition():
            return
        waited.wait(0.001)
    raise AssertionError("the condition did not come true")


def test_an_error_of_the_engine_disables_its_dnn_and_the_others_serve(
    start: Callable[..., Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(task("a", jobs=1), task("b", jobs=1), workers=1)
    broken = engine._dnns["a"]
    monkeypatch.setattr(broken, "_finish", lambda inference: 1 / 0)
    engine.offer(frame(value=1))
    recorder.wait(lambda: recorder.failures and recorder.results)
    (failure,) = recorder.failures
    assert (failure.dnn, failure.disabled) == ("a", True)
    assert "ZeroDivisionError" in engine.statistics().disabled["a"]
    engine.offer(frame(value=2))
    recorder.wait(lambda: len(recorder.results) == 2)
    assert [(drop.dnn, drop.reason) for drop in recorder.drops] == [
        ("a", DropReason.DNN_ERROR), ("a", DropReason.DISABLED),
    ]  # fmt: skip
    assert engine.failed_threads() == ["dnn-a"]
    check_accounts(engine)


def test_an_error_in_a_dnn_thread_that_runs_jobs_leaves_the_slot_to_the_others(
    start: Callable[..., Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(task("a", jobs=2), task("b", jobs=1, cameras=("rear",)), workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(engine._queue, "may_run_successor", lambda job: 1 / 0)
        engine.offer(frame())
        recorder.wait(lambda: recorder.failures)
    assert engine.failed_threads() == ["dnn-a"]
    engine.offer(frame("rear"))
    recorder.wait(lambda: recorder.results)
    assert [result.dnn for result in recorder.results] == ["b"]
    check_accounts(engine)


def test_a_worker_ended_by_an_error_is_named(
    start: Callable[..., Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(task("a", jobs=2), workers=2)
    assert engine.failed_threads() == []
    with monkeypatch.context() as patch:
        patch.setattr(engine._queue, "try_acquire", lambda job: False)  # a worker runs the jobs
        patch.setattr(engine._queue, "exchange", lambda job: 1 / 0)
        engine.offer(frame())
        _wait(engine.failed_threads)
    assert len(engine.failed_threads()) == 1
    engine.stop(0.1)
    assert engine.failed_threads() == []  # after stop() ended threads are not reported
    check_accounts(engine)
