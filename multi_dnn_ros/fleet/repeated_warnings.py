"""Limits how often a warning is shown whose cause persists, such as a full disk."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds between two warnings with the same key.
PERIOD_S = 60.0


class RepeatedWarnings:
    """Shows a warning at once, and again only after a minute."""

    def __init__(self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """show: called with each text to show. clock: seconds."""
        self._show, self._clock = show, clock
        self._shown_at: dict[str, float] = {}

    def warn(self, key: str, text: str) -> None:
        """key: what the warning is about. A text that differs from the last one with this key is not shown earlier."""
        now = self._clock()
        if key not in self._shown_at or now - self._shown_at[key] >= PERIOD_S:
            self._shown_at[key] = now
            self._show(text)

    def settle(self, key: str, text: str) -> None:
        """The cause has gone: show a text if the warning was shown, and the next warning at once."""
        if self._shown_at.pop(key, None) is not None:
            self._show(text)
