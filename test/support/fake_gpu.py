"""A fake GPU: streams that are busy until a point in time, and events that stand for one."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from multi_dnn_ros.backends.cuda_driver import HostCopies
from multi_dnn_ros.engine import gpu as gpu_module
from multi_dnn_ros.engine.frame import Frame

DEVICE = torch.device("cuda", 0)
#: A clock's two readings may differ by this much more than what lies between them, seconds.
_SLACK_S = 1e-4


class Stream:
    device = DEVICE

    def __init__(self) -> None:
        self.until = 0.0

    def wait_event(self, event: Event) -> None:
        self.until = max(self.until, event.at)


class Event:
    def __init__(self, **kind: Any) -> None:
        self.at = 0.0

    def record(self, stream: Stream) -> None:
        self.at = max(stream.until, time.perf_counter())

    def query(self) -> bool:
        return self.at <= time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        if max(self.at, end.at) > time.perf_counter() + _SLACK_S:
            raise RuntimeError("CUDA error: device not ready")  # recorded again by another frame, say
        return (end.at - self.at) * 1e3


class Counter:
    """A number that is written when its stream gets there."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self._writes: list[tuple[float, int]] = [(0.0, 0)]

    @property
    def value(self) -> int:
        now = time.perf_counter()
        return [value for at, value in self._writes if at <= now][-1]

    def write(self, value: int) -> None:
        self._writes = [*self._writes[-4:], (self._gpu.stream.until, value)]


class FakeGpu:
    """Replaces CUDA in the engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._current = threading.local()
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
        monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(self._current, "stream", stream))
        monkeypatch.setattr(HostCopies, "start", lambda copies, tensor: tensor.clone())
        monkeypatch.setattr(gpu_module, "enqueue_on", lambda device: self)
        monkeypatch.setattr(Frame, "tensor", lambda frame, device: torch.from_numpy(frame.image))
        monkeypatch.setattr(gpu_module, "make_stream", lambda device, sms, priority: Stream())

    def record(self, event: Event) -> None:
        """Record an event on the calling thread's stream, as Enqueue does."""
        event.record(self._current.stream)

    def counter(self) -> Counter:
        """A counter, as Enqueue makes it."""
        return Counter(self)

    @property
    def stream(self) -> Stream:
        """The calling thread's stream."""
        found: Stream = self._current.stream
        return found

    def launch(self, seconds: float) -> None:
        """On the calling thread's stream."""
        stream = self._current.stream
        stream.until = max(stream.until, time.perf_counter()) + seconds
