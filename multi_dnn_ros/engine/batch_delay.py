"""Decides when a DNN starts an inference: at once with the waiting frames, or after a short delay with more."""

from __future__ import annotations

from collections.abc import Callable


class BatchDelay:
    """Not thread-safe: the DNN thread that owns it calls it under its lock.

    max_batch: maximum frames per inference. delay_ns: maximum wait for further frames, from the moment when the DNN
    could have started with the first. clock: nanoseconds.
    """

    def __init__(self, max_batch: int, delay_ns: int, clock: Callable[[], int]) -> None:
        self._max_batch = max_batch
        self._delay_ns = delay_ns
        self._clock = clock
        self._until_ns: int | None = None

    def should_start(self, waiting: int) -> bool:
        """Whether the idle DNN starts now with the `waiting` frames (1 or more)."""
        if waiting >= self._max_batch or not self._delay_ns:
            return True
        now = self._clock()
        if self._until_ns is None:
            self._until_ns = now + self._delay_ns
        return now >= self._until_ns

    def remaining_s(self) -> float | None:
        """Seconds until the delay has elapsed; None if it is not running."""
        return None if self._until_ns is None else max(0, self._until_ns - self._clock()) / 1e9

    def reset(self) -> None:
        """End the delay, because the inference has started or cannot start."""
        self._until_ns = None
