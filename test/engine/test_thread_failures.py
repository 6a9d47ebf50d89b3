"""Errors of callbacks and of the engine itself: lost frames are counted, and nothing fails silently."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_fakes import Recorder, check_accounts, frame, task

from multi_dnn_ros.engine import DropReason, Engine


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
    engine.stop(0.1)
    assert engine.failed_threads() == []  # after stop() ended threads are not reported
