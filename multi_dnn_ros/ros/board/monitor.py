"""Reads the sensors at a low rate in a thread of its own, because some drivers take milliseconds or block."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from multi_dnn_ros.ros.board.sensors import Reading, load_nvml, read_sensors

PERIOD_S = 2.0
#: A reading that is older is not shown: a driver blocks.
MAX_AGE_S = 10.0
#: Energy per result covers this time.
WINDOW_S = 10.0


class BoardMonitor:
    """Starts reading when it is created. warn: called once if reading fails. root: /sys, or a copy of it.

    read: called in the thread; None: reads the sensors of this computer. clock: seconds, monotonic.
    """

    def __init__(
        self,
        warn: Callable[[str], None],
        root: Path = Path("/sys"),
        read: Callable[[], Reading] | None = None,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn = warn
        self._root = root
        self._read = read
        self._period_s = period_s
        self._clock = clock
        self._stop = threading.Event()
        self._latest = clock(), Reading()
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)
        self._thread.start()

    def latest(self) -> Reading:
        """The last reading; empty at first, and while a driver blocks, because old values would look current.

        Takes no lock.
        """
        at_s, reading = self._latest
        return reading if self._clock() - at_s <= self._period_s + MAX_AGE_S else Reading()

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread; a driver that blocks may keep it alive."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            read = self._read or partial(read_sensors, self._root, load_nvml())
            while not self._stop.wait(self._period_s):
                self._latest = self._clock(), read()
        except Exception as error:
            self._warn(f"the sensors of this computer cannot be read; /diagnostics has no status `board`: {error}")


class EnergyPerResult:
    """Energy of the whole computer, as far as its power is known, for each result of the last 10 s.

    Includes idle power. clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, float, int]] = deque(maxlen=512)  # time, joules so far, results so far

    def update(self, power_w: float | None, results: int) -> float | None:
        """Joules per result; None: unknown, or no result. results: number of results published since activation."""
        now = self._clock()
        if power_w is None or (self._samples and results < self._samples[-1][2]):  # activated again
            self._samples.clear()
        if power_w is None:
            return None
        last, joules = (self._samples[-1][0], self._samples[-1][1]) if self._samples else (now, 0.0)
        self._samples.append((now, joules + power_w * (now - last), results))
        while now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        first, newest = self._samples[0], self._samples[-1]
        return (newest[1] - first[1]) / (newest[2] - first[2]) if newest[2] > first[2] else None
