"""How many failures in a row a DNN has had, when these disable it, and when it is tried again."""

from __future__ import annotations

from collections.abc import Callable

#: Seconds until a disabled DNN is tried again, by how often that has failed before; the last one holds from then on.
RETRY_DELAYS_S = (10.0, 60.0, 600.0)


class Health:
    """Not thread-safe: the DNN thread that owns it holds its lock around every call.

    most: failures in a row with which the DNN is disabled; after a pause a single one does. clock: nanoseconds,
    monotonic.
    """

    def __init__(self, most: int, clock: Callable[[], int]) -> None:
        self._most = most
        self._clock = clock
        self._disabled: str | None = None
        self._retries = 0
        self._retry_ns: int | None = None
        self.failures = 0  # in a row

    @property
    def disabled(self) -> str | None:
        """Why the DNN takes no frames; None: it takes them, maybe once more."""
        if self._retry_ns is not None and self._clock() >= self._retry_ns:
            self._disabled = self._retry_ns = None
        return self._disabled

    def retry_s(self) -> float | None:
        """Seconds until a disabled DNN is tried again; None: never in this engine, or it is not disabled."""
        return None if self._retry_ns is None else max(0.0, (self._retry_ns - self._clock()) / 1e9)

    def succeeded(self) -> None:
        """A frame came through."""
        self.failures = self._retries = 0

    def failed(self, message: str) -> None:
        """A frame, or those of a batch, were lost by the DNN's own fault."""
        self.failures += 1
        if self.disabled is None and (self._retries or self.failures >= self._most):
            pause_s = RETRY_DELAYS_S[min(self._retries, len(RETRY_DELAYS_S) - 1)]
            self._retries += 1
            self._retry_ns = self._clock() + round(pause_s * 1e9)
            self._disabled = (
                f"disabled after {self.failures} failures in a row, next try in {pause_s:g} s; the last: {message}"
            )

    def thread_ended(self, message: str) -> None:
        """An error in the engine's own code ended the DNN's thread; nothing can be tried again."""
        self.failures += 1
        self._retry_ns = None
        self._disabled = f"disabled, as its thread ended: {message}"
