"""What has been received from one camera; the source of its status in /diagnostics."""

from __future__ import annotations

from collections import deque
from dataclasses import InitVar, dataclass, field

from multi_dnn_ros.engine.statistics import Percentiles
from multi_dnn_ros.ros.losses import UNKNOWN_LOSSES, Losses, LossEstimator
from multi_dnn_ros.ros.stamp_ages import WINDOW_NS, StampAges


@dataclass
class CameraRecord:
    """Images received from one camera. Times are those of the monotonic clock, in nanoseconds.

    since_ns: when the topic was subscribed to. rate_hz, max_loss: parameters of the camera. raw: whether its transport
    is `raw`. qos: the subscription's, in words. error: why no image can arrive (incompatible QoS). loss_cause: why
    more than max_loss of the images is missing, and what helps. shape: size and encoding of the last image, in words.
    """

    name: str
    topic: str
    since_ns: int
    rate_hz: InitVar[float] = 0.0
    raw: InitVar[bool] = True
    max_loss: float = 1.0
    qos: str = ""
    error: str = ""
    loss_cause: str = ""
    losses: Losses = UNKNOWN_LOSSES
    image_bytes: int = 0
    received: int = 0
    last_ns: int | None = None
    shape: str = ""
    arrivals: deque[int] = field(default_factory=lambda: deque(maxlen=512))
    ages: StampAges = field(default_factory=StampAges)

    def __post_init__(self, rate_hz: float, raw: bool) -> None:
        self.estimator = LossEstimator(rate_hz, raw)

    def arrived(
        self,
        now_ns: int,
        shape: str,
        image_bytes: int,
        stamp_ns: int,
        sequence: int | None,
        clock_ns: int,
        *,
        single_publisher: bool = True,
        late: bool = False,
    ) -> None:
        """Count a message. shape: size and encoding according to the message. sequence: number given by the publisher.

        clock_ns: the node's clock. single_publisher: the topic has one publisher. late: an image sent after this one
        has arrived already.
        """
        self.received += 1
        self.image_bytes = image_bytes
        self.estimator.add_image(now_ns, stamp_ns, sequence, single_publisher=single_publisher, late=late)
        self.last_ns = now_ns
        self.shape = shape
        self.arrivals.append(now_ns)
        self.ages.add(now_ns, clock_ns, stamp_ns)

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
