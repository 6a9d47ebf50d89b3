"""How many images of a camera were sent and did not reach the node: counted where possible, else estimated.

Sources, the best first:

1. the publisher's sequence numbers, which Fast DDS passes on with each message (exact);
2. message-lost events, which Fast DDS raises for best-effort subscriptions (exact, but for the first and last image);
3. gaps between the stamps, against the parameter ``camera.<camera>.rate_hz`` where it is set;
4. gaps between the stamps, against the camera's own period, learnt from them (:mod:`.frame_period`);
5. datagrams that the kernel dropped at our sockets: where so few images arrive that no period can be learnt. The kernel
   counts for the whole process; which camera's they were is not known.

Nothing here needs ROS. Times are nanoseconds of a monotonic clock; stamps are the sender's.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from multi_dnn_ros.ros.frame_period import LEAST_SPARSE, is_steady, period_of

_SECOND_NS = 1_000_000_000
#: The share that is missing is about the images of this time.
RECENT_NS = 10 * _SECOND_NS
#: Fewest images for a share.
_LEAST = 5
#: The period is learnt from this many gaps at most, none older than _GAPS_NS.
_GAPS = 64
_GAPS_NS = 60 * _SECOND_NS
#: After this many consecutive longer gaps the camera counts as slower.
_SLOWER = 10
#: A gap longer than both limits, without a sign of loss, is a pause: the camera was stopped, or a playback paused.
_PAUSE_NS = 2 * _SECOND_NS
_PAUSE_PERIODS = 20
#: A gap between stamps of this many times the elapsed time is a jump: a recording starts again.
_JUMP = 4
#: Distance from a multiple of the period, in periods, that counts as jitter.
_REGULAR = 0.25
#: What a datagram of an image carries at Cyclone DDS's default MaxMessageSize; others send fewer, larger ones, so that
#: the estimate is a lower bound.
_DATAGRAM_BYTES = 14_720
#: Fewest dropped datagrams in 10 s after which a camera without an image counts as losing all of them.
_LEAST_DROPS = 30
#: Most missing images that early ones make up for.
_MOST_EARLY = 20
#: Images between a failed attempt to learn the period and the next one.
_RETRY_AFTER = 16
#: Most missing sequence numbers that are remembered, for images that arrive late.
_REMEMBERED = 256


@dataclass(frozen=True)
class Losses:
    """Images since the account began. lost: None: unknown. share: missing of the last 10 s, 0 to 1.

    source: what the estimate is from, in words. drops: datagrams that the kernel dropped at this process's sockets.
    """

    received: int
    lost: int | None
    share: float
    source: str
    drops: int

    @property
    def sent(self) -> int | None:
        """The estimated number of images that were sent."""
        return None if self.lost is None else self.received + self.lost


NO_DATA = "no data yet"
#: Before anything is known.
NO_LOSSES = Losses(0, None, 0.0, NO_DATA, 0)


class LossAccount:
    """Of one camera. rate_hz: what the user says that it sends; 0: not known. raw: its images are not compressed, so
    that dropped datagrams are probably its own. Single-threaded.
    """

    def __init__(self, rate_hz: float = 0.0, raw: bool = True) -> None:
        self._expected_ns = _SECOND_NS / rate_hz if rate_hz > 0 else None
        self._raw = raw
        self._received = 0
        self._sequence: int | None = None
        self._numbered = False
        self._missing_numbers = 0
        self._absent: deque[int] = deque(maxlen=_REMEMBERED)  # the newest of them
        self._events = 0
        self._drops = 0
        self._own_drops = 0  # while a publisher was there, since the last restart
        self._recent_drops: deque[tuple[int, int]] = deque()  # time, datagrams; of the last 10 s
        # Of earlier publishers, and what it was counted by.
        self._settled = 0
        self._settled_source = NO_DATA
        # Of the last call of losses().
        self._image_bytes = 0
        self._reliable = False
        self._sign_ns: int | None = None  # when something last said that data was lost
        self._last: tuple[int, int] | None = None  # arrival, stamp
        self._last_arrival_ns: int | None = None
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_GAPS)  # arrival, gap
        # Gaps that were not compared with a period yet, and whether something said that data was lost in them.
        self._pending: deque[tuple[int, bool]] = deque(maxlen=4096)
        self._missing_periods = 0
        self._most_missing = 0  # the largest that _missing_periods was
        self._alone = True
        self._retry_at = 0  # images received when the period is to be learnt again
        self._carry = 0.0
        self._period_ns: float | None = None
        self._evidence_ns = 0  # arrival of the first image that the period was learnt from
        self._compared = 0  # gaps that were compared with it
        self._missing_before = 0  # _missing_periods when it was learnt
        self._steady = False  # whether nothing was missing in what it was learnt from
        self._history: deque[tuple[int, int, int]] = deque(maxlen=1024)  # time, received, lost

    def arrived(
        self, now_ns: int, stamp_ns: int, sequence: int | None = None, *, alone: bool = True, late: bool = False
    ) -> None:
        """Count an image. stamp_ns: of its header. sequence: the publisher's number of it, None where unknown.

        alone: the topic has one publisher; gaps between images of several say nothing. late: an image that was sent
        after this one has arrived already.
        """
        self._received += 1
        self._last_arrival_ns = now_ns
        self._alone = alone
        self._number(sequence)
        if not alone:
            self._last = None
            return
        if late:
            self._add_periods(-1)  # counted as missing in the gap before the later image
            return
        if self._last is not None:
            self._add_gap(now_ns, stamp_ns - self._last[1], now_ns - self._last[0])
        self._last = (now_ns, stamp_ns)

    def _number(self, sequence: int | None) -> None:
        newest = self._sequence
        if sequence is not None:
            self._numbered = True
            if newest is not None and sequence > newest:
                self._missing_numbers += sequence - newest - 1
                self._absent.extend(range(max(newest + 1, sequence - _REMEMBERED), sequence))
            elif sequence in self._absent:
                self._absent.remove(sequence)
                self._missing_numbers -= 1
                return
        self._sequence = sequence

    def reported(self, now_ns: int, count: int) -> None:
        """The middleware says that it lost `count` images."""
        if count > 0:
            self._events += count
            self._sign_ns = now_ns

    def dropped(self, now_ns: int, datagrams: int, connected: bool = True) -> None:
        """The kernel dropped so many datagrams at this process's sockets.

        connected: the camera has a publisher that fits; without one they were not this camera's.
        """
        if datagrams <= 0:
            return
        self._drops += datagrams
        if connected:
            self._own_drops += datagrams
            self._recent_drops.append((now_ns, datagrams))
            self._forget_drops(now_ns)
            self._sign_ns = now_ns

    def restart(self) -> None:
        """Other publishers than before: the next image is not compared with the last one. What was lost stays."""
        lost, source = self._lost(self._last_arrival_ns or 0, self._image_bytes, self._reliable)
        if lost:
            self._settled += lost
            self._settled_source = source
        self._sequence = self._last = self._period_ns = None
        self._numbered = False
        self._missing_numbers = self._events = self._own_drops = self._missing_periods = self._most_missing = 0
        self._carry = 0.0
        self._retry_at = 0
        self._sign_ns = self._last_arrival_ns = None
        for queue in (self._absent, self._pending, self._gaps):
            queue.clear()

    def losses(self, now_ns: int, image_bytes: int = 0, reliable: bool = False) -> Losses:
        """The account up to now; to be called about once a second.

        image_bytes: of the last image, 0: none yet. reliable: the subscription is; what is late may still arrive.
        """
        self._image_bytes, self._reliable = image_bytes, reliable
        lost, source = self._lost(now_ns, image_bytes, reliable)
        if lost is not None:
            lost += self._settled
        elif self._settled:
            lost, source = self._settled, self._settled_source
        if lost is not None:
            self._history.append((now_ns, self._received, lost))
        return Losses(self._received, lost, self._share(now_ns, lost), source, self._drops)

    # -- gaps between stamps

    def _add_gap(self, now_ns: int, gap_ns: int, passed_ns: int) -> None:
        if gap_ns <= 0:
            return
        if gap_ns > _PAUSE_NS and gap_ns > _JUMP * passed_ns:
            return
        signed = self._sign_since(now_ns - passed_ns)
        self._pending.append((gap_ns, signed))
        known_ns = self._expected_ns or self._period_ns
        if signed or known_ns is None or not _is_pause(gap_ns, known_ns):
            self._gaps.append((now_ns, gap_ns))

    def _sign_since(self, since_ns: int) -> bool:
        return self._sign_ns is not None and self._sign_ns >= since_ns

    def _learn(self, now_ns: int) -> float | None:
        if self._received < self._retry_at:
            return self._period_ns
        while self._gaps and now_ns - self._gaps[0][0] > _GAPS_NS:
            self._gaps.popleft()
        gaps = [gap for _, gap in self._gaps]
        period = period_of(gaps)
        newest = gaps[-_SLOWER:]
        slower = period_of(newest) if len(newest) == _SLOWER else None
        if slower is not None and is_steady(newest, slower) and not self._sign_since(self._gaps[-_SLOWER][0]):
            if period is None or slower > 1.5 * period:
                while len(self._gaps) > _SLOWER:
                    self._gaps.popleft()
            period = slower
        if period is None and len(gaps) >= LEAST_SPARSE:
            self._retry_at = self._received + _RETRY_AFTER
        known = self._period_ns
        if period is None or known is None:
            self._adopt(period)
        elif self._gaps[0][0] <= self._evidence_ns:
            # It fits what the known one was learnt from, and more.
            if period > 1.5 * known or (period < known / 1.5 and not self._steady):
                counted = self._compared + self._missing_periods - self._missing_before
                self._missing_periods = self._missing_before + max(0, round(counted * known / period) - self._compared)
                self._most_missing = self._missing_periods
            self._period_ns = period
        # Even losses look like a slower camera; where something says that data was lost, they are losses.
        elif period <= 1.5 * known or not self._sign_since(self._gaps[0][0]):
            self._adopt(period)
        return self._period_ns

    def _adopt(self, period_ns: float | None) -> None:
        if period_ns is not None:
            self._period_ns = period_ns
            self._evidence_ns = self._gaps[0][0]
            self._compared = 0
            self._missing_before = self._missing_periods
            self._steady = is_steady([gap for _, gap in self._gaps], period_ns)

    def _compare(self, period_ns: float) -> int:
        """Periods without an image so far, those since the last image not included."""
        while self._pending:
            gap, signed = self._pending.popleft()
            if _is_pause(gap, period_ns) and not signed:
                continue
            # What rounding leaves goes into the next gap: stamps of a camera that was held up and then hurries add up.
            position = gap / period_ns + self._carry
            periods = round(position)
            self._carry = position - periods
            if abs(self._carry) < _REGULAR:
                self._carry /= 2  # so that a small error of the period does not
            self._compared += 1
            self._add_periods(periods - 1)
        return max(0, self._missing_periods)

    def _add_periods(self, missing: int) -> None:
        self._missing_periods = max(self._missing_periods + missing, self._most_missing - _MOST_EARLY)
        self._most_missing = max(self._most_missing, self._missing_periods)

    def _missing_now(self, period_ns: float) -> int:
        """Periods from the last image until something last said that data was lost."""
        if self._last_arrival_ns is None or self._sign_ns is None:
            return 0
        return max(0, math.floor((self._sign_ns - self._last_arrival_ns) / period_ns))

    # -- what tells

    def _lost(self, now_ns: int, image_bytes: int, reliable: bool) -> tuple[int | None, str]:
        if self._numbered:
            return max(self._missing_numbers, self._events), "the publisher's sequence numbers"
        if self._events:
            return self._events, "message-lost events"
        period, source = self._expected_ns, "rate_hz"
        if not self._alone:
            period = None
        elif period is None:
            period, source = self._learn(now_ns), "gaps between the stamps"
        if period is not None and self._received:
            # Reliable: images are sent again, and dropped again, long after the camera has ended.
            return self._compare(period) + (0 if reliable else self._missing_now(period)), source
        # Many images without a period: an irregular camera. A raw one may lose nearly all images all the same; small
        # compressed ones are probably not what was dropped.
        if self._own_drops and image_bytes and (self._raw or len(self._gaps) < LEAST_SPARSE):
            return math.ceil(self._own_drops * _DATAGRAM_BYTES / image_bytes), "datagrams that the kernel dropped"
        return None, NO_DATA

    def _forget_drops(self, now_ns: int) -> None:
        while self._recent_drops and now_ns - self._recent_drops[0][0] > RECENT_NS:
            self._recent_drops.popleft()

    def _share(self, now_ns: int, lost: int | None) -> float:
        if lost is None:
            self._forget_drops(now_ns)
            drops = sum(datagrams for _, datagrams in self._recent_drops)
            return 1.0 if self._raw and not self._received and drops >= _LEAST_DROPS else 0.0
        while len(self._history) > 1 and now_ns - self._history[1][0] >= RECENT_NS:
            self._history.popleft()
        _, received_before, lost_before = self._history[0]
        if len(self._history) == 1 or now_ns - self._history[0][0] < RECENT_NS // 2:
            received_before, lost_before = 0, 0  # young: all that there was
        arrived, missing = self._received - received_before, max(0, lost - lost_before)
        return missing / (arrived + missing) if arrived + missing >= _LEAST else 0.0


def _is_pause(gap_ns: int, period_ns: float) -> bool:
    return gap_ns > max(_PAUSE_NS, _PAUSE_PERIODS * period_ns)
