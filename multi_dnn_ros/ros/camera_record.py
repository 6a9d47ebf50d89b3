"""What has been received from one camera; the source of its status in /diagnostics."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from multi_dnn_ros.engine.statistics import Percentiles
from multi_dnn_ros.ros.stamp_ages import WINDOW_NS, StampAges

#: Minimum number of images sent in the window from which a share of missing images is computed.
_MIN_IMAGES = 5


#: Share of the images of the last 10 s above which missing ones are a warning.
MAX_LOSS = 0.2


@dataclass
class CameraRecord:
    """Images received from one camera. Times are those of the monotonic clock, in nanoseconds.

    since_ns: when the topic was subscribed to. rate_hz: parameter of the camera. qos: the subscription's, in
    words. error: why no image can arrive. warning: what else is wrong with the publishers. cause: why images are
    missing, and what helps. image_bytes, shape: size of the last image, and its size and encoding in words. lost:
    images that the middleware has reported as lost.
    """

    name: str
    topic: str
    since_ns: int
    rate_hz: float = 0.0
    qos: str = ""
    error: str = ""
    warning: str = ""
    cause: str = ""
    image_bytes: int = 0
    received: int = 0
    lost: int = 0
    last_ns: int | None = None
    shape: str = ""
    arrivals: deque[int] = field(default_factory=lambda: deque(maxlen=4096))
    losses: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=4096))
    ages: StampAges = field(default_factory=StampAges)

    def arrived(self, now_ns: int, shape: str, image_bytes: int, stamp_ns: int, clock_ns: int) -> None:
        """Count a message. shape: size and encoding according to the message. clock_ns: the node's clock."""
        self.received += 1
        self.image_bytes = image_bytes
        self.last_ns = now_ns
        self.shape = shape
        self.arrivals.append(now_ns)
        self.ages.add(now_ns, clock_ns, stamp_ns)

    def reported_lost(self, now_ns: int, count: int) -> None:
        """The middleware has reported `count` more lost images."""
        self.lost += count
        self.losses.append((now_ns, count))

    def age(self, now_ns: int) -> Percentiles:
        """Age of the images of the last 10 s on arrival, according to their stamps."""
        return self.ages.percentiles(now_ns)

    def silent_s(self, now_ns: int) -> float:
        """Seconds since the last image, or since subscribing if there was none."""
        return (now_ns - (self.since_ns if self.last_ns is None else self.last_ns)) / 1e9

    def arrival_hz(self, now_ns: int) -> float:
        """Rate of the images of the last 10 s; 0 for fewer than two."""
        recent = [at for at in self.arrivals if now_ns - at <= WINDOW_NS]
        return (len(recent) - 1) * 1e9 / (recent[-1] - recent[0]) if len(recent) > 1 and recent[-1] > recent[0] else 0.0

    def missing(self, now_ns: int) -> float:
        """Share, 0 to 1, of the images of the last 10 s that did not arrive, as far as it is known.

        It is known from what the middleware reports, and from the rate of arrival where `rate_hz` is set.
        """
        received = sum(now_ns - at <= WINDOW_NS for at in self.arrivals)
        lost = sum(count for at, count in self.losses if now_ns - at <= WINDOW_NS)
        share = lost / (received + lost) if received + lost >= _MIN_IMAGES else 0.0
        if self.rate_hz > 0 and received >= _MIN_IMAGES:
            share = max(share, 1 - self.arrival_hz(now_ns) / self.rate_hz)
        return share
