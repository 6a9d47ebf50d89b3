"""Plays a source through a publisher in real time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from multi_dnn_ros.camera.source import Source, SourceImage

DEFAULT_RATE_HZ = 10.0
#: Interval of checking whether playing has to end.
_POLL_S = 0.1


class Publisher(Protocol):
    """Publishes images."""

    def publish(self, item: SourceImage, stamp_ns: int) -> None:
        """stamp_ns: the header's stamp."""


@dataclass
class Report:
    """Result of playing. late: number of images more than a period late. notes: damage of the source."""

    published: int = 0
    late: int = 0
    duration_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def rate_hz(self) -> float:
        """Mean rate between the first and the last image."""
        return (self.published - 1) / self.duration_s if self.published > 1 and self.duration_s > 0.0 else 0.0

    def __str__(self) -> str:
        late = f", {self.late} of them more than a period late" if self.late else ""
        return f"published {self.published} frames in {self.duration_s:.1f} s ({self.rate_hz:.2f} Hz){late}"


class Player:
    """Plays a source once, or repeatedly with `loop`; :attr:`report` is always current, also after an interruption.

    Images are due relative to the first one, so that delays of single images do not accumulate. A delay of more than a
    period is not followed by a burst: it shifts the schedule.

    rate_hz: None selects the rate of the source, or 10 if it has none. count: number of images to play. source_stamps:
    headers carry the source's time, counted from 0, instead of `now_ns`. running: playing ends when it returns False.
    clock: returns monotonic seconds. sleep: pauses for a number of seconds.
    """

    def __init__(
        self,
        source: Source,
        publisher: Publisher,
        *,
        now_ns: Callable[[], int],
        rate_hz: float | None = None,
        count: int | None = None,
        loop: bool = False,
        source_stamps: bool = False,
        running: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.report = Report()
        self._source = source
        self._publisher = publisher
        self._now_ns = now_ns
        self._rate_hz = rate_hz or source.rate_hz or DEFAULT_RATE_HZ
        self._max_live_hz = rate_hz
        self._count = count
        self._loop = loop
        self._source_stamps = source_stamps
        self._running = running
        self._clock = clock
        self._sleep = sleep

    def play(self) -> Report:
        """Publish everything; returns :attr:`report`."""
        begin_s = start_s = self._clock()
        source_hz = self._source.rate_hz or self._rate_hz
        for index, item in enumerate(self._subsampled() if self._source.live else self._items()):
            if index == 0:
                begin_s = start_s = self._clock()
            elif not self._source.live:
                late_s = self._clock() - (start_s + index / self._rate_hz)
                if late_s > 1.0 / self._rate_hz:
                    self.report.late += 1
                    start_s += late_s
                self._wait_until(start_s + index / self._rate_hz)
            if not self._running():
                break
            self._publisher.publish(item, round(index / source_hz * 1e9) if self._source_stamps else self._now_ns())
            self.report.published += 1
            self.report.duration_s = self._clock() - begin_s
            if index + 1 == self._count:
                break
        self.report.notes = list(self._source.notes)
        return self.report

    def _wait_until(self, due_s: float) -> None:
        while self._running() and (left_s := due_s - self._clock()) > 0.0:
            self._sleep(min(left_s, _POLL_S))

    def _items(self) -> Iterator[SourceImage]:
        found = True
        while found:
            found = False
            for item in self._source.items():
                yield item
                found = self._loop

    def _subsampled(self) -> Iterator[SourceImage]:
        """The images of a live source as they arrive, limited to the requested rate."""
        due_s = self._clock()
        for item in self._source.items():
            now_s = self._clock()
            if self._max_live_hz is not None:
                if now_s < due_s - 0.25 / self._max_live_hz:  # tolerate the device's jitter
                    continue
                due_s = max(due_s + 1.0 / self._max_live_hz, now_s)
            yield item
