"""Launching on a GPU, without one: order, and the numbers by which the end of an inference is seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_fakes import WAIT, Recorder, check_accounts, frame, task
from fake_gpu import DEVICE, FakeGpu

from multi_dnn_ros.engine import Engine
from multi_dnn_ros.engine import gpu as gpu_module


def test_inferences_end_after_their_numbers_have_begun_again(
    start: Callable[..., Engine], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeGpu(monkeypatch)
    monkeypatch.setattr(gpu_module, "_NUMBERS", 8)
    engine = start(task("a", on_gpu=True), task("b", on_gpu=True), device=DEVICE)
    for value in range(30):
        assert engine.submit(frame(value=value), WAIT)
    assert engine.wait_idle(WAIT)
    for name in "ab":
        assert [it.frame.stamp_ns for it in recorder.results if it.dnn == name] == list(range(30))
    check_accounts(engine)
