"""When a DNN begins an inference: with the frames that wait already, or a little later with more of them."""

from __future__ import annotations

from collections.abc import Callable


class BatchDelay:
    """Not thread-safe: the DNN thread that owns it holds its lock around every call.

    most: frames that one inference takes. delay_ns: longest wait for further ones, from the moment at which the DNN
    could have begun with the first. clock: nanoseconds.
    """

    def __init__(self, most: int, delay_ns: int, clock: Callable[[], int]) -> None:
        self._most = most
        self._delay_ns = delay_ns
        self._clock = clock
        self._until_ns: int | None = None

    def should_start(self, waiting: int) -> bool:
        """Whether the DNN, which has room for an inference, begins now with the `waiting` frames (1 or more)."""
        if waiting >= self._most or not self._delay_ns:
            return True
        now = self._clock()
        if self._until_ns is None:
            self._until_ns = now + self._delay_ns
        return now >= self._until_ns

    def remaining_s(self) -> float | None:
        """Seconds until it is over without any more frames; None while nothing is waited for."""
        return None if self._until_ns is None else max(0, self._until_ns - self._clock()) / 1e9

    def reset(self) -> None:
        """The inference has begun, or cannot begin."""
        self._until_ns = None
