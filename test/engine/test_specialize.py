"""Specializing preprocessing for the image sizes that arrive."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
from engine_fakes import WAIT, Gate, check_accounts, task, waits_for

from multi_dnn_ros.engine import Frame


def sized(height: int, width: int) -> Frame:
    return Frame("front", 0, np.zeros((height, width, 3), np.uint8))


def test_specialize_is_called_once_per_size_after_a_frame(start, recorder):
    sizes = []
    engine = start(replace(task("a", jobs=1), specialize=lambda size: sizes.append((size, len(recorder.results)))))
    for number, (height, width) in enumerate([(4, 6), (4, 6), (2, 3), (4, 6)], start=1):
        assert engine.submit(sized(height, width), WAIT)
        recorder.wait(lambda number=number: len(recorder.results) == number)
    assert engine.wait_idle(WAIT)
    engine.stop(WAIT)
    assert sizes == [((4, 6), 1), ((2, 3), 3)]
    check_accounts(engine)


def test_no_job_runs_while_specializing(start, recorder, monkeypatch):
    gate, inside, leave = Gate(), threading.Event(), threading.Event()
    running = []

    def specialize(size: tuple[int, int]) -> None:
        inside.set()
        assert leave.wait(WAIT)

    def on_job(index: int) -> None:
        running.append(inside.is_set() and not leave.is_set())
        gate()

    other = task("b", jobs=2, cameras=("rear",), on_job=on_job)
    engine = start(replace(task("a", jobs=1), specialize=specialize), other, workers=2)
    waits = waits_for(engine._queue._idle, monkeypatch)
    engine.offer(Frame("rear", 0, np.zeros((2, 3, 3), np.uint8)))
    gate.wait_for_job()
    engine.offer(sized(4, 6))
    recorder.wait(lambda: recorder.results)
    assert waits.wait(WAIT)  # for b's job
    assert not inside.is_set()
    gate.open()
    assert inside.wait(WAIT)
    leave.set()
    recorder.wait(lambda: len(recorder.results) == 2)
    assert running == [False, False]


def test_failing_specialization_is_retried_twice(start, recorder, caplog):
    attempts = []

    def specialize(size: tuple[int, int]) -> None:
        attempts.append(size)
        if len(attempts) != 5:
            raise RuntimeError("cannot be captured")

    engine = start(replace(task("a", jobs=1), specialize=specialize))
    sizes = [(4, 6)] * 5 + [(2, 3)] * 4
    for number, (height, width) in enumerate(sizes, start=1):
        assert engine.submit(sized(height, width), WAIT)
        recorder.wait(lambda number=number: len(recorder.results) == number)
    engine.stop(WAIT)
    assert attempts == [(4, 6)] * 3 + [(2, 3)] * 2  # given up after three; done after two
    assert [record.getMessage() for record in caplog.records] == [
        "DNN a: preprocessing is not captured (capture_preprocess) and runs eagerly for images of "
        f"{size} (attempts left: {left}): cannot be captured"
        for size, left in (("6 x 4", 2), ("6 x 4", 1), ("6 x 4", 0), ("3 x 2", 2))
    ]
    assert not recorder.failures
