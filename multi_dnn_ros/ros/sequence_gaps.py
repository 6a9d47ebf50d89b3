"""Counts the sequence numbers of a publisher that did not arrive. Nothing here needs ROS."""

from __future__ import annotations

from collections import deque

#: How many of the newest missing numbers are remembered, in case their messages arrive late.
_REMEMBERED = 256


class SequenceGaps:
    """Missing sequence numbers of one publisher.

    missing: numbers that were skipped and have not arrived since. known: the publisher numbers its messages.
    """

    def __init__(self) -> None:
        self.missing = 0
        self.known = False
        self._last: int | None = None
        self._absent: deque[int] = deque(maxlen=_REMEMBERED)

    def add(self, sequence: int | None) -> None:
        """Count a message. sequence: its number; None if the middleware does not provide one."""
        last = self._last
        if sequence is not None:
            self.known = True
            if last is not None and sequence > last:
                self.missing += sequence - last - 1
                self._absent.extend(range(max(last + 1, sequence - _REMEMBERED), sequence))
            elif sequence in self._absent:
                self._absent.remove(sequence)
                self.missing -= 1
                return
        self._last = sequence
