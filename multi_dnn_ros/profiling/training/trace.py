"""The timeline of one training step: segments of computation, and messages between the processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from multi_dnn_ros.profiling.training.layers import Phase


@dataclass(frozen=True)
class Segment:
    """A span of the computing thread (CPU) or stream (GPU), in seconds since the step began.

    phase: None is bookkeeping of the profiler.
    """

    layer: int
    phase: Phase | None
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Message:
    """One all-reduce, from launch to end in seconds since the step began. layers: those whose gradients it reduces."""

    layers: tuple[int, ...]
    bytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """The timeline of one step. segments: consecutive, without gaps."""

    segments: tuple[Segment, ...]
    messages: tuple[Message, ...]

    @property
    def total_s(self) -> float:
        """Duration of the step without bookkeeping of the profiler."""
        return sum(segment.end_s - segment.start_s for segment in self.segments if segment.phase is not None)

    def seconds(self) -> dict[tuple[int, Phase], float]:
        """Total seconds by layer and phase."""
        found: dict[tuple[int, Phase], float] = {}
        for segment in self.segments:
            if segment.phase is not None:
                key = (segment.layer, segment.phase)
                found[key] = found.get(key, 0.0) + segment.end_s - segment.start_s
        return found


class Recorder:
    """Takes time stamps of one step: the host's clock for a CPU, CUDA events for a GPU.

    window: range of the changes of layer or phase that get a time stamp; None: all of them.
    """

    def __init__(self, device: torch.device, window: range | None = None) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._window = window
        self._marks: list[tuple[Any, int, Phase | None]] = []
        self._messages: list[_Flight] = []
        self._end: Any = None

    @property
    def count(self) -> int:
        """Number of changes of layer or phase so far."""
        return len(self._marks)

    def stamp(self) -> Any:
        """A time stamp of now; on a GPU, on the calling thread's current stream."""
        if not self._cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def switch(self, layer: int, phase: Phase | None) -> None:
        """Record that `layer` enters `phase`."""
        self._marks.append((self._mark(), layer, phase))

    def launch(self, layers: Sequence[int], count: int) -> list[Any] | None:
        """Record that a message of `count` bytes begins.

        The caller appends a time stamp of its end, on any thread, to the returned list. None: no time stamp is needed.
        """
        before = self.count - 1
        wanted = self._window is None or before in self._window
        stamps = [self.stamp()] if wanted else None
        self._messages.append(_Flight(tuple(layers), count, before, stamps))
        return stamps

    def finish(self) -> None:
        """Record the end of the step."""
        self._end = self._mark()

    def timeline(self) -> Timeline:
        """The timeline, after the launched work has finished."""
        return joined([self])

    def _mark(self) -> Any:
        window, number = self._window, self.count
        # The last segment of the window ends at the stamp after it.
        return self.stamp() if window is None or window.start <= number <= window.stop else None

    def _since(self, first: Any, stamp: Any) -> float:
        return float(first.elapsed_time(stamp)) / 1e3 if self._cuda else (stamp - first) / 1e9


@dataclass(frozen=True)
class _Flight:
    """A message. before: index of the last change of layer or phase before it. stamps: time stamps of its start and, if
    known, of its end; None: not taken.
    """

    layers: tuple[int, ...]
    bytes: int
    before: int
    stamps: list[Any] | None


def windows(count: int, size: int) -> list[range]:
    """The numbers 0 to `count` - 1, divided into ranges of at most `size`."""
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]


def joined(recorders: Sequence[Recorder]) -> Timeline:
    """Join equal steps, whose windows follow one another and cover the whole step, into one timeline.

    Raises RuntimeError if the steps ran their layers in different order.
    """
    first = recorders[0]
    if first._cuda:
        torch.cuda.synchronize(first._device)
    changes = [(layer, phase) for _, layer, phase in first._marks]
    at = [0.0] * (len(changes) + 1)
    found: list[Message] = []
    for recorder in recorders:
        if [(layer, phase) for _, layer, phase in recorder._marks] != changes:
            raise RuntimeError("two steps of the same network and method ran their layers in different order")
        stamps = [stamp for stamp, _, _ in recorder._marks] + [recorder._end]
        for number in recorder._window if recorder._window is not None else range(len(changes)):
            at[number + 1] = at[number] + recorder._since(stamps[number], stamps[number + 1])
        for flight in recorder._messages:
            if flight.stamps is not None and len(flight.stamps) > 1:
                before_s, before = at[flight.before], stamps[flight.before]
                start, end = (before_s + recorder._since(before, stamp) for stamp in flight.stamps)
                found.append(Message(flight.layers, flight.bytes, start, end))
    segments = [
        Segment(layer, phase, start, end)
        for (layer, phase), start, end in zip(changes, at, at[1:], strict=False)
        if end > start
    ]
    return Timeline(tuple(segments), tuple(found))


def exposed_by_message(timeline: Timeline, since_s: float, until_s: float) -> list[float]:
    """Seconds by which each message delayed the step between `since_s` and `until_s`, after the previous one ended."""
    found, end = [0.0] * len(timeline.messages), since_s
    for index in sorted(range(len(found)), key=lambda index: timeline.messages[index].end_s):
        at = min(timeline.messages[index].end_s, until_s)
        found[index] = max(0.0, at - end)
        end = max(end, at)
    return found
