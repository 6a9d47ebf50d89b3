"""Frames in an engine: results, drops, failures, order, stopping."""

from __future__ import annotations

import threading

import pytest
import torch
from engine_fakes import WAIT, FakeClock, Gate, check_accounts, frame, task
from fake_gpu import DEVICE, FakeGpu, Stream

from multi_dnn_ros.engine import DropReason, Engine


def test_every_dnn_returns_a_result_with_the_frames_context(start, recorder):
    engine = start(task("a", jobs=1), task("b", jobs=3), workers=2)
    for value in (10, 20):
        assert engine.submit(frame(value=value, context=f"header {value}"))
    assert engine.wait_idle(WAIT)
    answers = {(r.dnn, r.frame.context): r.output for r in recorder.results}
    assert answers == {
        ("a", "header 10"): (11.0, (2, 3)),
        ("a", "header 20"): (21.0, (2, 3)),
        ("b", "header 10"): (13.0, (2, 3)),
        ("b", "header 20"): (23.0, (2, 3)),
    }


def test_the_newest_frame_replaces_an_older_one_which_is_counted(start, recorder):
    gate = Gate()
    engine = start(task(jobs=1, on_job=lambda index: gate()), workers=1)
    engine.offer(frame(value=1))
    gate.wait_for_job()  # 1 is running; 2 waits, and 3 replaces it
    engine.offer(frame(value=2))
    engine.offer(frame(value=3))
    gate.open()
    recorder.wait(lambda: len(recorder.results) == 2)
    assert [r.frame.stamp_ns for r in recorder.results] == [1, 3]
    assert [(d.frame.stamp_ns, d.reason) for d in recorder.drops] == [(2, DropReason.OVERWRITTEN)]
    assert engine.wait_idle(WAIT)
    check_accounts(engine)


def test_a_frame_that_waited_too_long_is_dropped(start, recorder):
    clock, gate = FakeClock(), Gate()
    engine = start(task(jobs=1, on_job=lambda index: gate(), max_age_ns=100), workers=1, clock=clock)
    engine.offer(frame(value=1))
    gate.wait_for_job()
    engine.offer(frame(value=2))
    clock.now += 101
    gate.open()
    recorder.wait(lambda: recorder.drops)
    assert recorder.drops[0].reason is DropReason.TOO_OLD
    engine.update("a", max_age_ns=0)  # 0: never too old
    engine.offer(frame(value=3))
    recorder.wait(lambda: len(recorder.results) == 2)
    check_accounts(engine)


@pytest.mark.parametrize("error", [RuntimeError("layer broke"), SystemExit("layer broke")])
@pytest.mark.parametrize("where", ["job", "decode"])
def test_a_failing_dnn_loses_only_that_frame(start, recorder, where, error):
    bad = {2}
    current = []

    def on_job(index: int) -> None:
        if where == "job" and index == 1 and current[0] in bad:
            raise error

    def decode(outputs, size):
        if where == "decode" and current[0] in bad:
            raise error
        return current[0]

    engine = start(task("a", on_job=on_job, decode=decode), task("b"), workers=1)
    for value in (1, 2, 3):
        current[:] = [value]
        assert engine.submit(frame(value=value))
        assert engine.wait_idle(WAIT)
    assert [r.output for r in recorder.results if r.dnn == "a"] == [1, 3]
    assert len([r for r in recorder.results if r.dnn == "b"]) == 3
    reason = DropReason.DNN_ERROR if where == "job" else DropReason.BAD_OUTPUT
    assert [(d.dnn, d.reason) for d in recorder.drops] == [("a", reason)]
    assert "layer broke" in recorder.failures[0].message
    assert not recorder.failures[0].disabled


def test_a_disabled_dnn_is_retried_after_increasing_delays(start, recorder):
    """During a retry one failure disables it; a success resets the delays."""
    clock = FakeClock()
    broken = [True]

    def on_job(index: int) -> None:
        if broken[0]:
            raise RuntimeError("no memory")

    engine = start(task("bad", on_job=on_job), max_failures=3, clock=clock)

    def offered() -> DropReason:
        """Why the next frame is dropped."""
        assert engine.submit(frame())
        assert engine.wait_idle(WAIT)
        return recorder.drops[-1].reason

    def is_disabled_for(seconds: float) -> None:
        clock.now += round((seconds - 0.1) * 1e9)
        assert offered() is DropReason.DISABLED
        clock.now += round(0.2 * 1e9)

    assert [offered() for _ in range(3)] == [DropReason.DNN_ERROR] * 3
    assert "next retry in 10 s" in recorder.failures[-1].reason
    assert recorder.failures[-1].retry_s == 10.0
    for pause_s in (10, 60, 600, 600):
        is_disabled_for(pause_s)
        assert offered() is DropReason.DNN_ERROR
    is_disabled_for(600)
    broken[0] = False
    offered()
    assert len(recorder.results) == 1
    broken[0] = True
    assert [offered() for _ in range(4)] == [DropReason.DNN_ERROR] * 3 + [DropReason.DISABLED]
    assert "next retry in 10 s" in recorder.failures[-1].reason
    check_accounts(engine)


def test_a_slow_callback_delays_only_its_own_dnn(start, recorder):
    slow = threading.Event()

    def on_result(result):
        if result.dnn == "slow":
            assert slow.wait(WAIT)
        recorder.callbacks()["on_result"](result)

    engine = start(task("slow"), task("quick"), workers=1, on_result=on_result)
    for value in range(3):
        engine.offer(frame(value=value))
        recorder.wait(lambda count=value + 1: len([r for r in recorder.results if r.dnn == "quick"]) == count)
    slow.set()
    assert engine.wait_idle(WAIT)


def test_timing_splits_the_latency_into_its_parts(start, recorder):
    clock = FakeClock()

    def on_job(index: int) -> None:
        clock.now += 5

    engine = start(task(jobs=2, on_job=on_job), workers=1, clock=clock)
    engine.offer(frame())
    recorder.wait(lambda: recorder.results)
    assert engine.wait_idle(WAIT)
    timing = recorder.results[0].timing
    assert timing.arrival_to_result_ns == 10
    assert timing.compute_ns == 10


def test_invalid_arguments_are_named_in_the_error(recorder):
    with pytest.raises(ValueError, match=r"\['a', 'a'\]"):
        Engine([task("a"), task("a")], on_result=print)
    with pytest.raises(ValueError, match="'a' has 0 stages"):
        Engine([task("a", jobs=0)], on_result=print)
    with pytest.raises(ValueError, match="workers is 0"):
        Engine([task("a")], on_result=print, workers=0)
    with pytest.raises(ValueError, match="policy is 'none'; allowed: fifo, "):
        Engine([task("a")], on_result=print, policy="none")
    with pytest.raises(ValueError, match="'rear'; served cameras: front"):
        Engine([task("a")], on_result=print).offer(frame("rear"))


def test_each_dnn_has_a_stream_of_its_priority_on_its_share(monkeypatch):
    """Which stream is requested for a frame; that CUDA respects it is tested in test/gpu."""
    made = []
    FakeGpu(monkeypatch)

    def make_stream(device: torch.device, sms: int, priority: int) -> Stream:
        made.append((sms, priority))
        return Stream()

    monkeypatch.setattr("multi_dnn_ros.engine.gpu.make_stream", make_stream)
    tasks = [task("a", on_gpu=True), task("b", on_gpu=True, priority=3), task("c", on_gpu=True, priority=3, sms=16)]
    engine = Engine(tasks, on_result=lambda result: None, device=DEVICE)
    engine.start()

    def streams_of_a_frame() -> set[tuple[int, int]]:
        made.clear()
        assert engine.submit(frame(), WAIT)
        assert engine.wait_idle(WAIT)
        return set(made)

    assert streams_of_a_frame() == {(0, 0), (0, -1), (16, 0)}
    assert streams_of_a_frame() == set()
    engine.update("b", priority=-1)  # now a is more important than b, although its priority is unchanged
    assert streams_of_a_frame() == {(0, 0), (0, -1)}
    engine.stop(WAIT)
