"""Errors of callbacks and of the engine's own code: what they cost is counted, and nothing ends in silence."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from engine_fakes import WAIT, FakeClock, Recorder, check_accounts, frame, task

from multi_dnn_ros.engine import DropReason, Engine, Frame, FrameError
from multi_dnn_ros.engine.dnn_thread import DnnThread, Limits
from multi_dnn_ros.engine.job import Inference, Item, Job
from multi_dnn_ros.engine.policies import Fifo
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.engine.reports import Callbacks

_CPU = torch.device("cpu")


def test_a_job_that_waits_for_a_held_queue_is_handed_out_once_when_that_closes() -> None:
    queue = JobQueue(Fifo(), FakeClock())
    done: list[Inference] = []
    inference = Inference(task(), (Item(frame()),), 0, None, 0, done.append)
    assert queue.put(Job(inference, 0))
    first = queue.get()
    assert first is not None
    kept: list[Job | None] = []
    worker = threading.Thread(target=lambda: kept.append(queue.exchange(first.successor())))
    with _HeldBeside(queue):
        worker.start()
        _wait(lambda: queue._running == 0)  # the worker waits inside exchange
        given_back = queue.close()
    worker.join(WAIT)
    assert not worker.is_alive()
    assert (kept, given_back) == ([None], [])  # None: the job stays with the worker
    with queue.held(0.01):  # the worker's job does not count as running any more
        pass


class _HeldBeside:
    """Holds the queue from another thread as soon as no job is under way."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with self._queue.held(WAIT):
            assert self._leave.wait(WAIT)

    def __enter__(self) -> None:
        self._thread.start()
        _wait(lambda: self._queue._held)

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


@pytest.mark.parametrize("decode_first", [False, True])
def test_a_callback_for_bad_images_that_raises_costs_nothing_else(recorder: Recorder, decode_first: bool) -> None:
    def load() -> np.ndarray:
        raise ValueError("half a JPEG")

    def on_bad(error: FrameError) -> None:
        raise KeyError("front")

    clock, queue = FakeClock(), JobQueue(Fifo(), FakeClock())
    callbacks = Callbacks(*recorder.callbacks().values())
    thread = DnnThread(task(jobs=1), queue, Limits(decode_first=decode_first), callbacks, clock)
    thread.start()
    for reports, each in enumerate((Frame("front", 0, load, on_bad=on_bad), frame(value=3)), start=1):
        thread.offer(each)
        job = queue.get()
        assert job is not None
        try:
            job.run(_CPU)
        except FrameError as error:
            job.inference.lost = (DropReason.BAD_IMAGE, str(error))
        queue.ended()
        job.inference.done(job.inference)
        recorder.wait(lambda reports=reports: len(recorder.drops) + len(recorder.results) == reports)
    assert [drop.reason for drop in recorder.drops] == [DropReason.BAD_IMAGE]
    assert [result.output[0] for result in recorder.results] == [4.0]
    thread.close(drop_waiting=True)
    thread.join(WAIT)
    assert not thread.is_alive()


def test_an_error_of_the_engine_disables_its_dnn_and_the_others_serve(
    start: Callable[..., Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(task("a", jobs=1), task("b", jobs=1), workers=1)
    broken = engine._dnns["a"]
    monkeypatch.setattr(broken, "_settle", lambda inference: 1 / 0)
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
    assert engine.ended() == ["dnn-a"]
    check_accounts(engine)


def test_a_worker_that_ended_by_an_error_is_named(
    start: Callable[..., Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(task("a", jobs=2), workers=2)
    assert engine.ended() == []
    with monkeypatch.context() as patch:
        patch.setattr(engine._queue, "exchange", lambda job: 1 / 0)
        engine.offer(frame())
        _wait(engine.ended)
    assert len(engine.ended()) == 1
    engine.stop(0.1)
    assert engine.ended() == []  # after stop() ended threads are no news
    check_accounts(engine)
