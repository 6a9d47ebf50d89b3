"""How many images of a camera were sent and did not reach the node: counted if possible, otherwise estimated.

Sources, the most exact first:

1. the publisher's sequence numbers, which Fast DDS provides with each message (exact);
2. message-lost events, which Fast DDS raises for best-effort subscriptions (exact except for the first and last image);
3. gaps between the stamps, compared with the parameter ``camera.<camera>.rate_hz`` if it is set;
4. gaps between the stamps, compared with a period learned from them (:mod:`.stamp_gaps`);
5. datagrams that the kernel dropped at the sockets of this process, if no period is known: too few images have arrived,
   the topic has several publishers, or a raw camera is irregular. The kernel counts per process, so the datagrams of
   several cameras cannot be told apart.

Nothing here needs ROS. Times are nanoseconds of a monotonic clock; stamps are the sender's.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from multi_dnn_ros.ros.loss_source import LossSource
from multi_dnn_ros.ros.sequence_gaps import SequenceGaps
from multi_dnn_ros.ros.stamp_gaps import StampGaps

_SECOND_NS = 1_000_000_000
#: Losses.share covers this time.
RECENT_NS = 10 * _SECOND_NS
#: Minimum number of sent images from which a share is computed.
_MIN_IMAGES = 5
#: Payload of a datagram at Cyclone DDS's default MaxMessageSize. Other middlewares send fewer, larger datagrams, so the
#: estimate is a lower bound.
_DATAGRAM_BYTES = 14_720
#: If at least this many datagrams were dropped in 10 s, a raw camera from which no image has arrived is assumed to lose
#: all its images.
_MIN_DROPS = 30


@dataclass(frozen=True)
class Losses:
    """Images of one camera since the subscription.

    lost: number of images; None: unknown. share: part of the images of the last 10 s that is missing, 0 to 1. source:
    what the estimate is based on. dropped_datagrams: at the sockets of this process, by the kernel.
    """

    received: int
    lost: int | None
    share: float
    source: LossSource
    dropped_datagrams: int

    @property
    def sent(self) -> int | None:
        """The estimated number of images that were sent; None: unknown."""
        return None if self.lost is None else self.received + self.lost


#: Before there is an estimate.
UNKNOWN_LOSSES = Losses(0, None, 0.0, LossSource.NONE, 0)


class LossEstimator:
    """Lost images of one camera; not thread-safe.

    rate_hz: frame rate of the camera according to the user; 0: unknown. raw: its images are not compressed, so that
    dropped datagrams probably belong to them.
    """

    def __init__(self, rate_hz: float = 0.0, raw: bool = True) -> None:
        self._raw = raw
        self._received = 0
        self._single_publisher = True
        self._numbers = SequenceGaps()
        self._stamps = StampGaps(_SECOND_NS / rate_hz if rate_hz > 0 else None)
        self._events = 0
        self._drops = 0
        self._drops_while_connected = 0  # since the last restart
        self._recent_drops: deque[tuple[int, int]] = deque()  # (time, datagrams) of the last 10 s
        # Losses before the last restart, and their source.
        self._former_lost = 0
        self._former_source = LossSource.NONE
        # Arguments of the last call of losses().
        self._image_bytes = 0
        self._reliable = False
        self._history: deque[tuple[int, int, int | None]] = deque(maxlen=1024)  # time, received, lost

    def add_image(
        self,
        now_ns: int,
        stamp_ns: int,
        sequence: int | None = None,
        *,
        single_publisher: bool = True,
        late: bool = False,
    ) -> None:
        """Count an image. stamp_ns: stamp of its header. sequence: number given by the publisher; None: unknown.

        single_publisher: the topic has one publisher; gaps between images of several publishers mean nothing. late: an
        image sent after this one has arrived already.
        """
        self._received += 1
        self._single_publisher = single_publisher
        self._numbers.add(sequence)
        self._stamps.add(now_ns, stamp_ns, single_publisher=single_publisher, late=late)

    def add_reported_losses(self, now_ns: int, count: int) -> None:
        """The middleware has reported `count` lost images."""
        if count > 0:
            self._events += count
            self._stamps.loss_reported(now_ns)

    def add_dropped_datagrams(self, now_ns: int, datagrams: int, connected: bool = True) -> None:
        """The kernel has dropped datagrams at the sockets of this process.

        connected: the camera has a compatible publisher; otherwise the datagrams were not from this camera.
        """
        if datagrams <= 0:
            return
        self._drops += datagrams
        if connected:
            self._drops_while_connected += datagrams
            self._recent_drops.append((now_ns, datagrams))
            self._forget_old_drops(now_ns)
            self._stamps.loss_reported(now_ns)

    def restart(self) -> None:
        """The publishers have changed: do not compare the next image with the last one. Losses so far are kept."""
        lost, source = self._lost(self._stamps.last_arrival_ns or 0, self._image_bytes, self._reliable)
        if lost:
            self._former_lost += lost
            self._former_source = source
        self._numbers = SequenceGaps()
        self._stamps.restart()
        self._events = self._drops_while_connected = 0

    def losses(self, now_ns: int, image_bytes: int = 0, reliable: bool = False) -> Losses:
        """The losses so far; to be called about once a second.

        image_bytes: size of the last image; 0: none yet. reliable: the subscription is reliable, so that lost data is
        sent again.
        """
        self._image_bytes, self._reliable = image_bytes, reliable
        lost, source = self._lost(now_ns, image_bytes, reliable)
        if lost is not None:
            lost += self._former_lost
        elif self._former_lost:
            lost, source = self._former_lost, self._former_source
        self._history.append((now_ns, self._received, lost))
        return Losses(self._received, lost, self._share(now_ns, lost, source), source, self._drops)

    def _lost(self, now_ns: int, image_bytes: int, reliable: bool) -> tuple[int | None, LossSource]:
        """Lost images since the last restart, and the source of the number."""
        if self._numbers.known:
            return max(self._numbers.missing, self._events), LossSource.SEQUENCE_NUMBERS
        if self._events:
            return self._events, LossSource.EVENTS
        if self._single_publisher:
            missing = self._stamps.missing(now_ns, reliable=reliable)
            if missing is not None:
                return missing, self._stamps.source
        # Without a period, dropped datagrams are the only evidence. For compressed images they count only until enough
        # images have arrived to learn a period: after that they were probably another camera's. For raw images they
        # always count, because most may be lost although some arrive.
        if self._drops_while_connected and image_bytes and (self._raw or not self._stamps.can_learn_period):
            lost = math.ceil(self._drops_while_connected * _DATAGRAM_BYTES / image_bytes)
            return lost, LossSource.DATAGRAMS
        return None, LossSource.NONE

    def _forget_old_drops(self, now_ns: int) -> None:
        while self._recent_drops and now_ns - self._recent_drops[0][0] > RECENT_NS:
            self._recent_drops.popleft()

    def _share(self, now_ns: int, lost: int | None, source: LossSource) -> float:
        if lost is None:
            self._forget_old_drops(now_ns)
            recent = sum(datagrams for _, datagrams in self._recent_drops)
            return 1.0 if self._raw and not self._received and recent >= _MIN_DROPS else 0.0
        while len(self._history) > 1 and now_ns - self._history[1][0] >= RECENT_NS:
            self._history.popleft()
        begin_ns, received_before, lost_before = self._history[0]
        if lost_before is None and source not in (LossSource.RATE, LossSource.GAPS):
            lost_before = 0  # events and dropped datagrams are counted when they occur
        if lost_before is None or now_ns - begin_ns < RECENT_NS // 2:
            # Too short a history, or a period was learned in these 10 s, which revealed all earlier losses at once: use
            # all images so far.
            received_before, lost_before = 0, 0
        arrived, missing = self._received - received_before, max(0, lost - lost_before)
        return missing / (arrived + missing) if arrived + missing >= _MIN_IMAGES else 0.0
