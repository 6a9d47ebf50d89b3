"""Waits for the due times of frames at a fixed rate or from a recording, without drift."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

_MAX_GAP_NS = 3600 * 10**9


def gap_ns(last_ns: int | None, now_ns: int) -> int:
    """Nanoseconds from one recorded message to the next one.

    0 for the first message (last_ns: None), and for a gap that is negative, or an hour or longer, because of damaged
    times or concatenated recordings.
    """
    gap = 0 if last_ns is None else now_ns - last_ns
    return gap if 0 < gap < _MAX_GAP_NS else 0


class Grid(NamedTuple):
    """The times `phase_s` + n * `period_s` of a clock, for all integers n."""

    period_s: float
    phase_s: float

    def next(self, time_s: float) -> float:
        """The first of these times that is not before `time_s`."""
        number = math.ceil((time_s - self.phase_s) / self.period_s)
        # The quotient is rounded, so its ceiling may be one too large or too small.
        near = (self.phase_s + (number + change) * self.period_s for change in (-1, 0, 1))
        return min(time for time in near if time >= time_s)


class Pace:
    """Waits until frames are due, relative to the first one, so that delays of single frames do not accumulate.

    A delay is not followed by a burst of frames: a frame more than `slack_s` late counts in :attr:`late` and shifts the
    schedule.

    clock: returns monotonic seconds. sleep: pauses for a number of seconds. running: returns False to end a wait early.
    grid: the schedule begins at one of these times of the clock, also after a shift; None: at any time.
    """

    _POLL_S = 0.1  # interval of checking `running`

    def __init__(
        self,
        slack_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        running: Callable[[], bool] = lambda: True,
        grid: Grid | None = None,
    ) -> None:
        self.late = 0
        self._slack_s = slack_s
        self._clock = clock
        self._sleep = sleep
        self._running = running
        self._grid = grid
        self._start_s: float | None = None

    def wait(self, due_s: float) -> bool:
        """Wait until `due_s`, in seconds on the time line of the frames; return False if `running` ended the wait.

        The first call sets the offset between this time line and the clock, and waits only for the grid.
        """
        now = self._clock()
        if self._start_s is None:
            self._start_s = self._possible(now) - due_s
        delay_s = now - (self._start_s + due_s)
        if delay_s > self._slack_s:
            self.late += 1
            self._start_s = self._possible(self._start_s + delay_s)
        while self._running():
            remaining_s = self._start_s + due_s - self._clock()
            if remaining_s <= 0.0:
                return True
            self._sleep(min(remaining_s, self._POLL_S))
        return False

    def _possible(self, start_s: float) -> float:
        """The first possible start of the schedule that is not before `start_s`."""
        return start_s if self._grid is None else self._grid.next(start_s)
