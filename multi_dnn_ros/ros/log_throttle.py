"""Limits how often messages of the same kind are logged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_PERIOD_S = 5.0


class LogThrottle:
    """Allows one message of each kind per period, and counts the suppressed ones. Thread-safe."""

    def __init__(self, period_s: float = _PERIOD_S, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._period_s = period_s
        self._clock = clock
        self._passed: dict[object, tuple[float, int]] = {}  # kind -> time of the last message, suppressed since
        self._lock = threading.Lock()

    def passes(self, kind: object) -> str | None:
        """None: suppress the message. Otherwise the text to append to it, empty or the number of suppressed ones."""
        now = self._clock()
        with self._lock:
            at, suppressed = self._passed.get(kind, (now - self._period_s, 0))
            if now - at < self._period_s:
                self._passed[kind] = (at, suppressed + 1)
                return None
            self._passed[kind] = (now, 0)
        return f" ({suppressed} more like it since the last message)" if suppressed else ""

    def forget(self, kind: object) -> bool:
        """Allow the next message of a kind at once, as its cause has gone. Returns whether there was one before."""
        with self._lock:
            return self._passed.pop(kind, None) is not None
