"""Calls of an observer: as many `ended` as `began`, and `device_failed` before `ended`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_fakes import WAIT, Recorder, frame, task
from fake_gpu import DEVICE, FakeGpu
from fake_gpu import Counter as Written

from multi_dnn_ros.engine import Engine

CPU = torch.device("cpu")
ILLEGAL = "CUDA error: an illegal memory access was encountered"


class Observed:
    """Records the calls. running: operations in progress, by DNN; max_running: the maximum."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.running: Counter[str] = Counter()
        self.max_running: Counter[str] = Counter()
        self._lock = threading.Lock()

    def began(self, dnn: str) -> None:
        with self._lock:
            self.events.append(("began", dnn))
            self.running[dnn] += 1
            self.max_running[dnn] = max(self.max_running[dnn], self.running[dnn])

    def ended(self, dnn: str) -> None:
        with self._lock:
            self.events.append(("ended", dnn))
            self.running[dnn] -= 1
            assert self.running[dnn] >= 0

    def device_failed(self, dnn: str, error: BaseException) -> None:
        assert self.running[dnn]
        self.events.append(("device failed", str(error)))


def run(device: torch.device, tasks: list, values: list[int]) -> tuple[Observed, Recorder]:
    """Run an engine on each value as a frame, one after another, so that none is overwritten."""
    observed, recorder = Observed(), Recorder()
    engine = Engine(tasks, **recorder.callbacks(), device=device, observer=observed, max_failures=1000)
    engine.start()
    for value in values:
        assert engine.submit(frame(value=value), WAIT)
    assert engine.wait_idle(WAIT)
    assert engine.stop(WAIT) == []
    return observed, recorder


def fails(when: Callable[[], bool], error: Exception) -> Callable[[int], None]:
    def on_job(index: int) -> None:
        if when():
            raise error

    return on_job


@pytest.mark.parametrize("device", [CPU, DEVICE], ids=str)
@pytest.mark.parametrize("dnns", [1, 3])
def test_began_and_ended_are_called_equally_often(
    device: torch.device, dnns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device is DEVICE:
        FakeGpu(monkeypatch)
    count = iter(range(10**6))

    def on_job(index: int) -> None:
        if next(count) % 7 == 3:
            raise ValueError("a layer raised")

    def decode(outputs: Any, size: Any) -> float:
        if next(count) % 5 == 2:
            raise ValueError("bad output")
        return float(outputs[0])

    tasks = [
        task(f"dnn{number}", jobs=3, on_job=on_job, decode=decode, on_gpu=device is DEVICE) for number in range(dnns)
    ]
    observed, recorder = run(device, tasks, list(range(50)))
    assert recorder.results
    assert recorder.drops
    assert set(observed.running.values()) == {0}
    assert set(observed.running) == {f"dnn{number}" for number in range(dnns)}
    assert max(observed.max_running.values()) <= 3  # two are launched, and the outputs of one are decoded


@pytest.mark.parametrize("device", [CPU, DEVICE], ids=str)
def test_device_failed_is_called_before_ended(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device is DEVICE:
        FakeGpu(monkeypatch)
    broken = task("broken", jobs=2, on_job=fails(lambda: True, RuntimeError(ILLEGAL)), on_gpu=device is DEVICE)
    observed, _ = run(device, [broken], [1])
    assert observed.events == [("began", "broken"), ("device failed", ILLEGAL), ("ended", "broken")]


def test_device_failed_is_called_when_a_kernel_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu(monkeypatch)

    def fail(event: Any) -> None:
        raise RuntimeError(ILLEGAL)

    monkeypatch.setattr(torch.cuda.Event, "query", fail)
    monkeypatch.setattr(Written, "value", 0)  # nothing ends any more
    observed, _ = run(DEVICE, [task("late", jobs=2, on_gpu=True)], [1])
    assert observed.events == [("began", "late"), ("device failed", ILLEGAL), ("ended", "late")]
