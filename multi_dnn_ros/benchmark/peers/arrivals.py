"""Counts the images that a program receives."""

from __future__ import annotations

import json
import time


class Arrivals:
    """Number of messages, and when the first and the last one arrived."""

    def __init__(self) -> None:
        self._count = 0
        self._first_s = self._last_s = 0.0

    def add(self) -> None:
        """Count a message that has arrived."""
        self._last_s = time.monotonic()
        self._first_s = self._first_s or self._last_s
        self._count += 1

    def text(self) -> str:
        """For the log, where `multi-dnn benchmark host` reads it: messages, and messages per second between the first
        one and the last.
        """
        seconds = self._last_s - self._first_s
        hz = (self._count - 1) / seconds if seconds else 0.0
        return f"counted {json.dumps({'messages': self._count, 'hz': hz})}"
