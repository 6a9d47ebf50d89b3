"""Consecutive failures of a DNN: when they disable it, and when it is retried."""

from __future__ import annotations

from collections.abc import Callable

#: Seconds until a disabled DNN is retried, by number of earlier retries; the last value applies to all further ones.
RETRY_DELAYS_S = (10.0, 60.0, 600.0)


class Health:
    """Not thread-safe: the DNN thread that owns it calls it under its lock.

    max_failures: consecutive failures that disable the DNN; during a retry a single failure does. clock: nanoseconds,
    monotonic.
    """

    def __init__(self, max_failures: int, clock: Callable[[], int]) -> None:
        self._max_failures = max_failures
        self._clock = clock
        self._disabled: str | None = None
        self._retries = 0
        self._retry_ns: int | None = None
        self.failures = 0  # consecutive

    @property
    def disabled(self) -> str | None:
        """Why the DNN accepts no frames; None: it accepts them, possibly as a retry."""
        if self._retry_ns is not None and self._clock() >= self._retry_ns:
            self._disabled = self._retry_ns = None
        return self._disabled

    def retry_s(self) -> float | None:
        """Seconds until a disabled DNN is retried; None: it is not disabled, or never retried in this engine."""
        return None if self._retry_ns is None else max(0.0, (self._retry_ns - self._clock()) / 1e9)

    def succeeded(self) -> None:
        """A frame was processed."""
        self.failures = self._retries = 0

    def failed(self, message: str) -> None:
        """A frame, or a batch of frames, was dropped because of the DNN."""
        self.failures += 1
        if self.disabled is None and (self._retries or self.failures >= self._max_failures):
            pause_s = RETRY_DELAYS_S[min(self._retries, len(RETRY_DELAYS_S) - 1)]
            self._retries += 1
            self._retry_ns = self._clock() + round(pause_s * 1e9)
            self._disabled = (
                f"disabled after {self.failures} failures in a row, next retry in {pause_s:g} s; last error: {message}"
            )

    def thread_ended(self, message: str) -> None:
        """An error in the engine itself ended the DNN's thread; the DNN cannot be retried."""
        self.failures += 1
        self._retry_ns = None
        self._disabled = f"disabled because its thread ended: {message}"
