"""Plays a source through a publisher in real time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from multi_dnn_ros.camera.pace import Grid, Pace
from multi_dnn_ros.camera.source import Recorded, Source, SourceImage

DEFAULT_RATE_HZ = 10.0


class Publisher(Protocol):
    """Publishes images."""

    def publish(self, item: SourceImage | Recorded, stamp_ns: int | None) -> bool:
        """Return False if the item was unreadable. stamp_ns: the header's stamp; None keeps a recorded stamp."""


@dataclass
class Report:
    """Result of playing. late: number of images more than a period late. notes: damage of the source."""

    published: int = 0
    unreadable: int = 0
    late: int = 0
    duration_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def rate_hz(self) -> float:
        """Mean rate between the first and the last image."""
        return (self.published - 1) / self.duration_s if self.published > 1 and self.duration_s > 0.0 else 0.0

    def __str__(self) -> str:
        parts = [f"published {self.published} frames in {self.duration_s:.1f} s ({self.rate_hz:.2f} Hz)"]
        if self.late:
            parts.append(f"{self.late} of them more than a period late")
        if self.unreadable:
            parts.append(f"{self.unreadable} unreadable messages left out")
        return ", ".join(parts)


class Player:
    """Plays a source once, or repeatedly with `loop`; :attr:`report` is always current, also after an interruption.

    rate_hz: None selects the rate of the source (for a recording: its intervals), or 10 if it has none. start_at:
    number of items to skip. count: number of items to play. source_stamps: headers carry the source's time, counted
    from 0 (recordings: their original stamps), instead of `now_ns`. phase_s: the first image is published at this time
    plus a multiple of the period on `clock`; None: immediately. Needs rate_hz; no effect on a live source.
    running: checked between items; playing ends when it returns False.
    """

    def __init__(
        self,
        source: Source,
        publisher: Publisher,
        *,
        now_ns: Callable[[], int],
        rate_hz: float | None = None,
        start_at: int = 0,
        count: int | None = None,
        loop: bool = False,
        source_stamps: bool = False,
        phase_s: float | None = None,
        running: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.report = Report()
        self._source = source
        self._publisher = publisher
        self._now_ns = now_ns
        self._rate_hz = rate_hz
        self._start_at = start_at
        self._count = count
        self._loop = loop
        self._source_stamps = source_stamps
        self._grid = None if phase_s is None or rate_hz is None else Grid(1.0 / rate_hz, phase_s)
        self._running = running
        self._clock = clock
        self._sleep = sleep

    def play(self) -> Report:
        """Publish everything; returns :attr:`report`."""
        first_s: float | None = None
        pace = Pace(1.0 / self._pace_hz(), clock=self._clock, sleep=self._sleep, running=self._running, grid=self._grid)
        for index, (due_s, source_s, item) in enumerate(self._timed()):
            if index < self._start_at:
                continue
            if not (self._source.live or pace.wait(due_s)):
                break
            if self._publisher.publish(item, self._stamp_ns(source_s, item)):
                self.report.published += 1
            else:
                self.report.unreadable += 1
            now_s = self._clock()
            first_s = now_s if first_s is None else first_s
            self.report.duration_s = now_s - first_s
            self.report.late = pace.late
            if index + 1 == self._start_at + (self._count or 0) or not self._running():
                break
        self.report.notes = list(self._source.notes)
        return self.report

    def _pace_hz(self) -> float:
        return self._rate_hz or self._source.rate_hz or DEFAULT_RATE_HZ

    def _stamp_ns(self, source_s: float, item: SourceImage | Recorded) -> int | None:
        if not self._source_stamps:
            return self._now_ns()
        return None if isinstance(item, Recorded) else round(source_s * 1e9)

    def _timed(self) -> Iterator[tuple[float, float, SourceImage | Recorded]]:
        """Every item with its due time and its time in the source, in seconds from 0."""
        if self._source.live:
            yield from ((0.0, 0.0, item) for item in self._subsampled())
            return
        source_hz = self._source.rate_hz or self._pace_hz()
        played = 0  # items of earlier loops
        played_s = 0.0  # recorded time of earlier loops
        while True:
            index, recorded_s, interval_s = -1, 0.0, 0.0
            for index, item in enumerate(self._source.items()):
                due_s = (played + index) / self._pace_hz()
                if isinstance(item, Recorded) and self._rate_hz is None:
                    interval_s, recorded_s = item.due_ns * 1e-9 - recorded_s, item.due_ns * 1e-9
                    due_s = played_s + recorded_s
                yield due_s, (played + index) / source_hz, item
            if not self._loop or index < 0:
                return
            played += index + 1
            played_s += recorded_s + (interval_s or 1.0 / self._pace_hz())

    def _subsampled(self) -> Iterator[SourceImage | Recorded]:
        """The images of a live source as they arrive, limited to the requested rate."""
        due_s = self._clock()
        for item in self._source.items():
            now_s = self._clock()
            if self._rate_hz is not None:
                if now_s < due_s - 0.25 / self._rate_hz:  # tolerate the device's jitter
                    continue
                due_s = max(due_s + 1.0 / self._rate_hz, now_s)
            yield item
