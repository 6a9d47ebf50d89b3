"""Specializing preprocessing for the image sizes that arrive."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from engine_fakes import WAIT, check_accounts, task
from fake_gpu import DEVICE, FakeGpu

from multi_dnn_ros.engine import Frame


def sized(height: int, width: int, camera: str = "front") -> Frame:
    return Frame(camera, 0, np.zeros((height, width, 3), np.uint8))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def test_specialize_is_called_once_per_size(start, recorder, gpu):
    sizes = []
    engine = start(
        replace(task("a", jobs=1, on_gpu=True), specialize=sizes.append),
        device=DEVICE,
    )
    for number, (height, width) in enumerate([(4, 6), (4, 6), (2, 3), (4, 6)], start=1):
        assert engine.submit(sized(height, width), WAIT)
        recorder.wait(lambda number=number: len(recorder.results) == number)
    assert engine.wait_idle(WAIT)
    engine.stop(WAIT)
    assert sizes == [(4, 6), (2, 3)]
    check_accounts(engine)


def test_nothing_is_launched_while_specializing(start, recorder, gpu):
    inside, leave = threading.Event(), threading.Event()
    running = []

    def specialize(size: tuple[int, int]) -> None:
        inside.set()
        assert leave.wait(WAIT)

    other = task("b", jobs=2, cameras=("rear",), on_gpu=True, on_job=lambda index: running.append(leave.is_set()))
    engine = start(replace(task("a", jobs=1, on_gpu=True), specialize=specialize), other, device=DEVICE)
    engine.offer(sized(4, 6))
    assert inside.wait(WAIT)
    engine.offer(sized(2, 3, "rear"))
    assert not engine.wait_idle(0.05)
    leave.set()
    recorder.wait(lambda: len(recorder.results) == 2)
    assert running == [True, True]


def test_preprocessing_that_cannot_be_captured_runs_eagerly(start, recorder, caplog, gpu):
    def specialize(size: tuple[int, int]) -> None:
        raise RuntimeError("cannot be captured")

    engine = start(replace(task("a", jobs=1, on_gpu=True), specialize=specialize), device=DEVICE)
    for _ in range(2):
        assert engine.submit(sized(4, 6), WAIT)
        assert engine.wait_idle(WAIT)
    engine.stop(WAIT)
    assert len(recorder.results) == 2
    (record,) = caplog.records
    assert "cannot be captured" in record.getMessage()
