"""What a DNN's failures lead to: one more chance for its device, and an end after too many in a row."""

from __future__ import annotations


class Health:
    """Not thread-safe: the DNN thread that owns it holds its lock around every call.

    most: failures in a row with which the DNN is taken out.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._rebuilt = False
        self.failures = 0  # in a row
        self.taken_out: str | None = None  # why; for good

    def succeeded(self) -> None:
        """A frame came through."""
        self.failures = 0

    def failed(self, message: str) -> None:
        """A frame, or those of a batch, were lost by the DNN's own fault."""
        self.failures += 1
        if self.failures >= self._most and self.taken_out is None:
            self.taken_out = f"taken out after {self.failures} failures in a row; the last: {message}"

    def device_failed(self, message: str) -> bool:
        """Whether its stages are to be made anew: the first time; the second time it is taken out."""
        self.failures += 1
        if self._rebuilt:
            self.taken_out = f"taken out, as the device failed again after its jobs were made anew: {message}"
            return False
        self._rebuilt = True
        return True

    def not_rebuilt(self, error: Exception, message: str) -> None:
        """Its stages could not be made anew after the device failed with `message`."""
        what = f"{type(error).__name__}: {error}"
        self.taken_out = f"taken out, as its jobs cannot be made anew ({what}) after: {message}"
