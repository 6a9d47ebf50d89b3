"""The progress of configuring: reported by the host in any thread, logged, and shown in the status of the node."""

from __future__ import annotations

import threading
from collections.abc import Callable

from multi_dnn_ros.serving.descriptions import Progress


class ConfigureProgress:
    """The progress of one node; thread-safe. log: logs a line."""

    def __init__(self, log: Callable[[str], object]) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._current: Progress | None = None

    @property
    def current(self) -> Progress | None:
        """The latest progress; None: the node is not configuring."""
        return self._current

    def start(self, text: str) -> None:
        """Configuring has started, or has reached a step that the host does not report. Not logged."""
        with self._lock:
            self._current = Progress(text)

    def report(self, progress: Progress) -> None:
        """Store the progress and log its text if it is new. Ignored after :meth:`end`."""
        with self._lock:
            last = self._current
            if last is None:
                return
            self._current = progress
        if progress.text != last.text:
            self._log(progress.text)

    def end(self) -> None:
        """Configuring has ended."""
        with self._lock:
            self._current = None
