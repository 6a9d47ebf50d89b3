"""Estimates how many images did not arrive, from the stamps of those that did.

The gap between the stamps of consecutive images is compared with the period of the camera, which is either known
(parameter ``camera.<camera>.rate_hz``) or learned from the gaps (:mod:`.frame_period`). Nothing here needs ROS. Times
are nanoseconds of a monotonic clock; stamps are the sender's.
"""

from __future__ import annotations

import math
from collections import deque

from multi_dnn_ros.ros.frame_period import MIN_SPARSE, is_steady, period_of
from multi_dnn_ros.ros.loss_source import LossSource

_SECOND_NS = 1_000_000_000
#: The period is learned from at most this many gaps, none older than _GAPS_NS.
_MAX_GAPS = 64
_GAPS_NS = 60 * _SECOND_NS
#: After this many consecutive longer gaps, the camera is taken to have become slower.
_SLOWER_GAPS = 10
#: A gap longer than both limits, during which no data was reported lost, is a pause: the camera was stopped, or the
#: playback of a recording was paused.
_PAUSE_NS = 2 * _SECOND_NS
_PAUSE_PERIODS = 20
#: A stamp that advances by this many times the elapsed time has jumped: a recording started again.
_JUMP = 4
#: Maximum distance from a multiple of the period, in periods, that is taken for jitter.
_JITTER = 0.25
#: Images that come early or out of order reduce the number of missing images to at most this much below its maximum.
_MAX_EARLY = 20
#: Images between a failed attempt to learn the period and the next attempt.
_RETRY_AFTER = 16


class StampGaps:
    """Missing images of one camera, from the gaps between stamps. expected_ns: its known period; None: learn it."""

    def __init__(self, expected_ns: float | None) -> None:
        self._expected_ns = expected_ns
        self._received = 0
        self._last: tuple[int, int] | None = None  # arrival and stamp of the last image in order
        self._last_arrival_ns: int | None = None
        self._loss_reported_ns: int | None = None
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_MAX_GAPS)  # arrival, gap; the period is learned from them
        # Gaps not yet compared with a period, and whether data was reported lost during them.
        self._pending: deque[tuple[int, bool]] = deque(maxlen=4096)
        self._missing = 0
        self._max_missing = 0  # largest value of _missing so far
        self._carry = 0.0  # rounding remainder of the last comparison, in periods
        self._retry_at = 0  # number of received images at which the period may be learned again
        self._period_ns: float | None = None
        self._learned_since_ns = 0  # arrival of the first image that the period was learned from
        self._compared = 0  # gaps compared with the present period
        self._missing_before = 0  # _missing when the present period was learned
        self._steady = False  # whether no image was missing in the gaps that the period was learned from

    @property
    def last_arrival_ns(self) -> int | None:
        """When the last image arrived; None: none has arrived since the last restart."""
        return self._last_arrival_ns

    @property
    def source(self) -> LossSource:
        """Where the period comes from."""
        return LossSource.GAPS if self._expected_ns is None else LossSource.RATE

    @property
    def can_learn_period(self) -> bool:
        """Whether there are enough gaps to find the period of a regular camera."""
        return len(self._gaps) >= MIN_SPARSE

    def add(self, now_ns: int, stamp_ns: int, *, single_publisher: bool, late: bool) -> None:
        """Count an image.

        single_publisher: the topic has one publisher. late: an image that was sent later has already
        arrived.
        """
        self._received += 1
        self._last_arrival_ns = now_ns
        if not single_publisher:
            self._last = None
            return
        if late:
            self._add_missing(-1)  # it was counted as missing when the later image arrived
            return
        if self._last is not None:
            self._add_gap(now_ns, stamp_ns - self._last[1], now_ns - self._last[0])
        self._last = (now_ns, stamp_ns)

    def loss_reported(self, now_ns: int) -> None:
        """The middleware or the kernel has reported lost data."""
        self._loss_reported_ns = now_ns

    def restart(self) -> None:
        """The publishers have changed: start again, and do not compare the next image with the last one."""
        self._last = self._last_arrival_ns = self._loss_reported_ns = self._period_ns = None
        self._missing = self._max_missing = self._retry_at = 0
        self._carry = 0.0
        self._pending.clear()
        self._gaps.clear()

    def missing(self, now_ns: int, *, reliable: bool) -> int | None:
        """Estimated number of missing images; None: the period is not known, or no image has arrived.

        reliable: lost data is sent again. Then losses reported after the last image are not counted, because long after
        the camera has stopped, its writer may still repeat data and the kernel drop it.
        """
        period_ns = self._expected_ns if self._expected_ns is not None else self._learn(now_ns)
        if period_ns is None or not self._received:
            return None
        return self._compare(period_ns) + (0 if reliable else self._missing_since_last(period_ns))

    def _add_gap(self, now_ns: int, gap_ns: int, elapsed_ns: int) -> None:
        if gap_ns <= 0:
            return
        if gap_ns > _PAUSE_NS and gap_ns > _JUMP * elapsed_ns:
            return
        reported = self._loss_since(now_ns - elapsed_ns)
        self._pending.append((gap_ns, reported))
        known_ns = self._expected_ns or self._period_ns
        if reported or known_ns is None or not _is_pause(gap_ns, known_ns):
            self._gaps.append((now_ns, gap_ns))

    def _loss_since(self, since_ns: int) -> bool:
        return self._loss_reported_ns is not None and self._loss_reported_ns >= since_ns

    def _learn(self, now_ns: int) -> float | None:
        if self._received < self._retry_at:
            return self._period_ns
        while self._gaps and now_ns - self._gaps[0][0] > _GAPS_NS:
            self._gaps.popleft()
        gaps = [gap for _, gap in self._gaps]
        period = period_of(gaps)
        newest = gaps[-_SLOWER_GAPS:]
        slower = period_of(newest) if len(newest) == _SLOWER_GAPS else None
        if slower is not None and is_steady(newest, slower) and not self._loss_since(self._gaps[-_SLOWER_GAPS][0]):
            if period is None or slower > 1.5 * period:
                while len(self._gaps) > _SLOWER_GAPS:
                    self._gaps.popleft()
            period = slower
        if period is None and self.can_learn_period:
            self._retry_at = self._received + _RETRY_AFTER
        known = self._period_ns
        if period is None or known is None:
            self._adopt(period)
        elif self._gaps[0][0] <= self._learned_since_ns:
            # The new period was also learned from gaps from which the known one was learned: correct what was counted
            # with the known one.
            if period > 1.5 * known or (period < known / 1.5 and not self._steady):
                counted = self._compared + self._missing - self._missing_before
                self._missing = self._missing_before + max(0, round(counted * known / period) - self._compared)
                self._max_missing = self._missing
            self._period_ns = period
        # Regular losses look like a slower camera. If data was reported lost, the longer gaps are losses.
        elif period <= 1.5 * known or not self._loss_since(self._gaps[0][0]):
            self._adopt(period)
        return self._period_ns

    def _adopt(self, period_ns: float | None) -> None:
        if period_ns is not None:
            self._period_ns = period_ns
            self._learned_since_ns = self._gaps[0][0]
            self._compared = 0
            self._missing_before = self._missing
            self._steady = is_steady([gap for _, gap in self._gaps], period_ns)

    def _compare(self, period_ns: float) -> int:
        """Number of periods without an image between the images so far."""
        while self._pending:
            gap, reported = self._pending.popleft()
            if _is_pause(gap, period_ns) and not reported:
                continue
            # The rounding remainder is carried into the next gap, so that the stamps of a camera that is delayed and
            # then catches up are counted correctly.
            position = gap / period_ns + self._carry
            periods = round(position)
            self._carry = position - periods
            if abs(self._carry) < _JITTER:
                self._carry /= 2  # keeps a small error of the period from accumulating
            self._compared += 1
            self._add_missing(periods - 1)
        return max(0, self._missing)

    def _add_missing(self, count: int) -> None:
        self._missing = max(self._missing + count, self._max_missing - _MAX_EARLY)
        self._max_missing = max(self._max_missing, self._missing)

    def _missing_since_last(self, period_ns: float) -> int:
        """Number of periods between the last image and the last report of lost data."""
        if self._last_arrival_ns is None or self._loss_reported_ns is None:
            return 0
        return max(0, math.floor((self._loss_reported_ns - self._last_arrival_ns) / period_ns))


def _is_pause(gap_ns: int, period_ns: float) -> bool:
    return gap_ns > max(_PAUSE_NS, _PAUSE_PERIODS * period_ns)
