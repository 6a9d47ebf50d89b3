"""Errors of callbacks and of the engine itself: lost frames are counted, and nothing fails silently."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_fakes import Recorder, check_accounts, frame, task
from fake_gpu import DEVICE, FakeGpu

from multi_dnn_ros.engine import DropReason, Engine


def test_an_error_of_the_engine_disables_its_dnn_and_the_others_serve(
    start: Callable[..., Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(task("a", jobs=1), task("b", jobs=1), workers=1)
    monkeypatch.setattr(engine._dnns["a"], "_publish", lambda inference: 1 / 0)
    engine.offer(frame(value=1))
    recorder.wait(lambda: recorder.failures and recorder.results)
    (failure,) = recorder.failures
    assert (failure.dnn, failure.disabled) == ("a", True)
    assert "ZeroDivisionError" in failure.reason
    engine.offer(frame(value=2))
    recorder.wait(lambda: len(recorder.results) == 2)
    assert [(drop.dnn, drop.reason) for drop in recorder.drops] == [
        ("a", DropReason.DNN_ERROR), ("a", DropReason.DISABLED),
    ]  # fmt: skip
    assert engine.failed_threads() == ["dnn-a"]
    check_accounts(engine)
    engine.stop(0.1)
    assert engine.failed_threads() == []  # after stop() ended threads are not reported


def test_an_error_in_the_launching_thread_drops_what_waits_and_is_named(
    start: Callable[..., Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeGpu(monkeypatch)
    engine = start(task("a", on_gpu=True), task("b", on_gpu=True), device=DEVICE)
    monkeypatch.setattr(engine._gpu, "_start", lambda inference: 1 / 0)
    engine.offer(frame())
    recorder.wait(lambda: len(recorder.failures) == 2)
    assert engine.failed_threads() == ["launch"]
    assert {drop.dnn for drop in recorder.drops} == {"a", "b"}
    engine.offer(frame())
    assert [drop.reason for drop in recorder.drops[2:]] == [DropReason.DISABLED] * 2
    check_accounts(engine)
