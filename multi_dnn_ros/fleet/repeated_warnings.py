"""Limits how often a warning is shown whose cause persists, such as a full disk."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds between two warnings with the same key.
PERIOD_S = 60.0


class RepeatedWarnings:
    """Says when to show a warning: at once, and again only after a minute. Keys are what warnings are about."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds."""
        self._clock = clock
        self._shown_at: dict[str, float] = {}

    def due(self, key: str) -> bool:
        """Whether to show a warning now, which is then counted as shown."""
        now = self._clock()
        if key in self._shown_at and now - self._shown_at[key] < PERIOD_S:
            return False
        self._shown_at[key] = now
        return True

    def settle(self, key: str) -> bool:
        """The cause has gone, and the next warning is due at once. Returns whether the warning had been shown."""
        return self._shown_at.pop(key, None) is not None
