"""How many failures in a row a DNN has had, and when these disable it."""

from __future__ import annotations


class Health:
    """Not thread-safe: the DNN thread that owns it holds its lock around every call.

    most: failures in a row with which the DNN is disabled.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.failures = 0  # in a row
        self.disabled: str | None = None  # why; for good

    def succeeded(self) -> None:
        """A frame came through."""
        self.failures = 0

    def failed(self, message: str) -> None:
        """A frame, or those of a batch, were lost by the DNN's own fault."""
        self.failures += 1
        if self.failures >= self._most and self.disabled is None:
            self.disabled = f"disabled after {self.failures} failures in a row; the last: {message}"

    def thread_ended(self, message: str) -> None:
        """An error in the engine's own code ended the DNN's thread."""
        self.failures += 1
        self.disabled = f"disabled, as its thread ended: {message}"
