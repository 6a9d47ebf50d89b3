"""Reads the sensors at a low rate in a thread of its own, because some drivers take milliseconds or block."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from multi_dnn_ros.ros.board.nvml import nvml_sources
from multi_dnn_ros.ros.board.sensors import Faults, Reading, Source, merged
from multi_dnn_ros.ros.board.sysfs import sysfs_sources

PERIOD_S = 2.0
#: A driver that does not answer for this time is taken to block.
BLOCKED_S = 10.0
#: Energy per result covers this time.
WINDOW_S = 10.0
_NOTHING = Reading()


class BoardMonitor:
    """Starts reading when it is created. root: /sys, or a copy of it. warn: called with one line per failing sensor.

    sources: called in the thread, returns the sensors to read; None: those of this computer. clock: seconds, monotonic.
    """

    def __init__(
        self,
        warn: Callable[[str], None],
        root: Path = Path("/sys"),
        sources: Callable[[Faults], list[Source]] | None = None,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn = warn
        self._faults = Faults(warn)
        self._root = root
        self._find = sources or self._all_sources
        self._period_s = period_s
        self._clock = clock
        self._being_read: tuple[str, float] | None = None  # name of the source, and since when
        self._stop = threading.Event()
        self._latest = _NOTHING
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)
        self._thread.start()

    def latest(self) -> Reading:
        """The last reading; empty at first, and while a driver blocks, because old values would look current.

        Takes no lock.
        """
        being_read = self._being_read
        if being_read is not None and self._clock() - being_read[1] > BLOCKED_S:
            self._faults.add(being_read[0], f"no answer for {BLOCKED_S:g} s; all sensors are left out until it answers")
            return _NOTHING
        return self._latest

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread; a driver that blocks may keep it alive."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _all_sources(self, faults: Faults) -> list[Source]:
        return [*sysfs_sources(self._root, faults), *nvml_sources(faults)]

    def _run(self) -> None:
        sources: list[Source] = []
        try:
            sources = self._find(self._faults)
        except Exception as error:
            self._warn(f"the sensors of this computer cannot be listed, so /diagnostics has no status `board`: {error}")
        while sources and not self._stop.wait(self._period_s):
            self._latest = merged([self._read(source) for source in sources])

    def _read(self, source: Source) -> Reading:
        name = type(source).__name__
        self._being_read = name, self._clock()
        try:
            return source.read()
        except Exception as error:  # one failing source must not stop the reading of the others
            self._faults.add(name, error)
            return Reading()
        finally:
            self._being_read = None


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
