"""What happened when in one training step: segments of computation, and messages between the processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from multi_dnn_ros.profiling.training.layers import Phase


@dataclass(frozen=True)
class Segment:
    """A span of the computing thread (CPU) or stream (GPU), in seconds since the step began. phase: None: our own."""

    layer: int
    phase: Phase | None
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Message:
    """One all-reduce. layers: whose gradients it carries. In seconds since the step began, from launch to end."""

    layers: tuple[int, ...]
    bytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """One step. segments: one after another, without gaps."""

    segments: tuple[Segment, ...]
    messages: tuple[Message, ...]

    @property
    def total_s(self) -> float:
        """Duration of the step without our own bookkeeping."""
        return sum(segment.end_s - segment.start_s for segment in self.segments if segment.phase is not None)

    def seconds(self) -> dict[tuple[int, Phase], float]:
        """Sum by layer and phase."""
        found: dict[tuple[int, Phase], float] = {}
        for segment in self.segments:
            if segment.phase is not None:
                key = (segment.layer, segment.phase)
                found[key] = found.get(key, 0.0) + segment.end_s - segment.start_s
        return found


class Recorder:
    """Takes time stamps of one step: of the host for a CPU, CUDA events for a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._marks: list[tuple[Any, int, Phase | None]] = []
        self._messages: list[tuple[tuple[int, ...], int, list[Any]]] = []
        self._end: Any = None

    def stamp(self) -> Any:
        """Now, on the calling thread's current stream."""
        if not self._cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def switch(self, layer: int, phase: Phase | None) -> None:
        """From here on `layer` is in `phase`."""
        self._marks.append((self.stamp(), layer, phase))

    def launch(self, layers: Sequence[int], count: int) -> list[Any]:
        """A message of `count` bytes begins; its end is appended to the returned list, on any thread."""
        stamps = [self.stamp()]
        self._messages.append((tuple(layers), count, stamps))
        return stamps

    def finish(self) -> None:
        """The step ends."""
        self._end = self.stamp()

    def timeline(self) -> Timeline:
        """All of it, once launched work has finished."""
        if self._cuda:
            torch.cuda.synchronize(self._device)
        first = self._marks[0][0]
        times = [self._since(first, mark) for mark, _, _ in self._marks] + [self._since(first, self._end)]
        segments = [
            Segment(layer, phase, start, end)
            for (_, layer, phase), start, end in zip(self._marks, times, times[1:], strict=False)
            if end > start
        ]
        messages = [
            Message(layers, count, self._since(first, stamps[0]), self._since(first, stamps[1]))
            for layers, count, stamps in self._messages
            if len(stamps) > 1
        ]
        return Timeline(tuple(segments), tuple(messages))

    def _since(self, first: Any, stamp: Any) -> float:
        return float(first.elapsed_time(stamp)) / 1e3 if self._cuda else (stamp - first) / 1e9


def exposed_by_message(timeline: Timeline, since_s: float, until_s: float) -> list[float]:
    """Seconds between `since_s` and `until_s` in which nothing but each message delayed the step, in order of ends."""
    found, end = [0.0] * len(timeline.messages), since_s
    for place in sorted(range(len(found)), key=lambda place: timeline.messages[place].end_s):
        at = min(timeline.messages[place].end_s, until_s)
        found[place] = max(0.0, at - end)
        end = max(end, at)
    return found
