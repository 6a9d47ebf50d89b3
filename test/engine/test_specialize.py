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
    check_accounts(recorder)


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


def test_failing_specialization_is_retried_twice(start, recorder, caplog, gpu):
    attempts = []

    def specialize(size: tuple[int, int]) -> None:
        attempts.append(size)
        if len(attempts) != 5:
            raise RuntimeError("cannot be captured")

    engine = start(replace(task("a", jobs=1, on_gpu=True), specialize=specialize), device=DEVICE)
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
