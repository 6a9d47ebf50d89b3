"""Ages of images and results by their header stamps: the node's clock minus the stamp, over the last 10 s."""

from __future__ import annotations

from collections import deque

from multi_dnn_ros.engine.statistics import Percentiles

#: Rates and percentiles cover this time.
WINDOW_NS = 10_000_000_000
#: A clock that is set back by more than this has started again: a recording is played again. Less may be a correction
#: of the computer's clock, or the order in which two threads read it or messages of /clock arrive.
SET_BACK_NS = 500_000_000


class StampAges:
    """The ages of one camera's images, or of one DNN's results, in nanoseconds.

    Neither an image without a stamp nor a clock at zero, which is simulated time before the first message on /clock,
    gives an age. When the clock is set back, all ages are forgotten: the last ones may be those of images that arrived
    before the clock was set back, and were therefore wrong by the length of the recording.

    Several threads may add ages without a lock, because appending to a deque and clearing it are atomic.
    """

    def __init__(self) -> None:
        self._ages: deque[tuple[int, int]] = deque(maxlen=1024)  # (monotonic time, age)
        self._clock_ns = 0

    def add(self, at_ns: int, clock_ns: int, stamp_ns: int) -> None:
        """Add an age. at_ns: monotonic clock. clock_ns: the node's clock. stamp_ns: of the header."""
        if clock_ns < self._clock_ns - SET_BACK_NS:
            self._ages.clear()
        self._clock_ns = clock_ns
        if clock_ns and stamp_ns:
            self._ages.append((at_ns, clock_ns - stamp_ns))

    def percentiles(self, now_ns: int) -> Percentiles:
        """The percentiles of the last 10 s; negative ages mean that the sender's clock is ahead of the node's."""
        return Percentiles.of(age for at, age in self._ages.copy() if now_ns - at <= WINDOW_NS)
