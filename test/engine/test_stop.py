"""An engine always stops, in bounded time, and accounts for every frame."""

from __future__ import annotations

import threading
import time

from engine_fakes import WAIT, Gate, check_accounts, frame, stop_while_one_hangs, task

from multi_dnn_ros.engine import DropReason


def test_stop_with_jobs_queued_drops_them(start, recorder):
    gate = Gate()
    engine = start(*(task(name, jobs=2, on_job=lambda index: gate()) for name in "abc"), workers=1)
    engine.offer(frame(value=1))
    gate.wait_for_job()  # one job runs, two are queued
    assert engine.submit(frame(value=2), WAIT)  # once all three have begun, three wait in their mailboxes
    stopper = threading.Thread(target=engine.stop, args=(WAIT,))
    stopper.start()
    recorder.wait(lambda: len(recorder.drops) == 5)
    gate.open()  # the running job may end now
    stopper.join(WAIT)
    assert not stopper.is_alive()
    assert {d.reason for d in recorder.drops} == {DropReason.SHUTDOWN}
    check_accounts(engine)


def test_a_job_that_hangs_does_not_keep_the_engine_from_stopping(start, recorder):
    gate = Gate()
    engine = start(task(jobs=1, on_job=lambda index: gate()), workers=1)
    engine.offer(frame())
    gate.wait_for_job()
    begin = time.monotonic()
    stop_while_one_hangs(engine, "dnn-a")
    assert time.monotonic() - begin < WAIT / 2
    assert [d.reason for d in recorder.drops] == [DropReason.SHUTDOWN]
    gate.open()  # its late result changes nothing
    check_accounts(engine)


def test_submit_ends_when_the_engine_stops(start, recorder):
    gate = Gate()
    engine = start(task(jobs=1, on_job=lambda index: gate()), workers=1)
    engine.offer(frame(value=1))
    gate.wait_for_job()
    engine.offer(frame(value=2))
    submitted = threading.Thread(target=engine.submit, args=(frame(value=3),))
    submitted.start()
    assert not engine.submit(frame(value=4), timeout_s=0.01)  # no room in time
    engine.stop(0.1)
    gate.open()
    submitted.join(WAIT)
    assert not submitted.is_alive()
    check_accounts(engine)


def test_stop_twice_and_stop_before_start_are_fine(start):
    from multi_dnn_ros.engine import Engine

    engine = start(task())
    assert engine.stop(WAIT) == []
    assert engine.stop(WAIT) == []
    assert Engine([task()], on_result=print).stop(WAIT) == []
