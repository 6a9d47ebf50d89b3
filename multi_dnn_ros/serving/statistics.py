"""Counters since the start, and percentiles over a sliding window, per DNN and camera."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.task import DropReason, Timing

#: Names of a DNN and of a camera.
DnnCamera = tuple[str, str]
#: Maximum number of samples in a window.
_CAPACITY = 4096
TIMINGS = ("end_to_end", "decode", "mailbox", "pre", "queue", "compute", "post", "publish")


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds; all 0 if there are no samples."""

    count: int = 0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, nanoseconds: Iterable[int]) -> Percentiles:
        values = np.fromiter(nanoseconds, dtype=np.float64) / 1e6
        if not len(values):
            return cls()
        # Not np.percentile: it takes three times as long, and a report computes dozens of these.
        values.sort()
        p50, p95, p99 = (_quantile(values, share) for share in (0.50, 0.95, 0.99))
        return cls(len(values), p50, p95, p99, float(values[-1]))


@dataclass(frozen=True)
class DnnCameraStatistics:
    """Statistics of one DNN on one camera. Always: offered == published + sum(dropped) + pending.

    latencies: end_to_end: arrival to end of publishing; decode: decoding the image, on arrival; mailbox: waiting for
    decoding and for the DNN; pre: upload and preprocessing; queue: waiting in the shared queue; compute: the layers;
    post: outputs to result; publish: from the decoded result to the end of publishing, in the node's process including
    the transfer from the engine process.
    rate_hz: results per second over the window. batch: mean frames per inference over the window.
    """

    offered: int = 0
    published: int = 0
    dropped: dict[DropReason, int] = field(default_factory=dict)
    pending: int = 0
    deadline_misses: int = 0
    rate_hz: float = 0.0
    batch: float = 0.0
    latencies: dict[str, Percentiles] = field(default_factory=dict)


@dataclass(frozen=True)
class Statistics:
    """A snapshot. disabled: for each disabled DNN, the reason."""

    by_dnn_and_camera: dict[DnnCamera, DnnCameraStatistics]
    disabled: dict[str, str]


class DnnCameraRecorder:
    """Collects the figures of one DNN on one camera; guarded by its owner's lock.

    A snapshot takes milliseconds, so the owner copies the recorder under the lock and takes the snapshot of the copy.

    window_ns: length of the window of percentiles and rate. At most _CAPACITY samples are kept.
    """

    def __init__(self, window_ns: int) -> None:
        self.offered = 0
        self.published = 0
        self.dropped: Counter[DropReason] = Counter()
        self.deadline_misses = 0
        self._window_ns = window_ns
        self._samples: deque[tuple[int, Timing]] = deque(maxlen=_CAPACITY)

    @property
    def pending(self) -> int:
        return self.offered - self.published - self.dropped.total()

    def record_published(self, timing: Timing, published_ns: int, deadline_ns: int | None) -> None:
        """Count a published result.

        published_ns: when publishing ended. deadline_ns: from arrival; None: no deadline.
        """
        self.published += 1
        if deadline_ns is not None and published_ns - timing.received_ns > deadline_ns:
            self.deadline_misses += 1
        self._samples.append((published_ns, timing))
        while published_ns - self._samples[0][0] > self._window_ns:  # outside the window
            self._samples.popleft()

    def copy(self) -> DnnCameraRecorder:
        """An independent copy."""
        other = copy(self)
        other.dropped = self.dropped.copy()
        other._samples = self._samples.copy()
        return other

    def snapshot(self, now_ns: int) -> DnnCameraStatistics:
        recent = [(at, timing) for at, timing in self._samples if now_ns - at <= self._window_ns]
        columns = {
            "end_to_end": [at - t.received_ns for at, t in recent],
            "decode": [t.decode_ns for _, t in recent],
            "mailbox": [t.mailbox_ns for _, t in recent],
            "pre": [t.pre_ns for _, t in recent],
            "queue": [t.queue_ns for _, t in recent],
            "compute": [t.compute_ns for _, t in recent],
            "post": [t.post_ns for _, t in recent],
            "publish": [at - t.finished_ns for at, t in recent],
        }
        return DnnCameraStatistics(
            offered=self.offered,
            published=self.published,
            dropped=dict(self.dropped),
            pending=self.pending,
            deadline_misses=self.deadline_misses,
            rate_hz=_rate(at for at, _ in recent),
            batch=sum(t.batch for _, t in recent) / len(recent) if recent else 0.0,
            latencies={part: Percentiles.of(columns[part]) for part in TIMINGS},
        )


def _quantile(ascending: npt.NDArray[np.float64], share: float) -> float:
    """The quantile, with linear interpolation like np.percentile."""
    position = share * (len(ascending) - 1)
    low = int(position)
    lower, upper = ascending[low], ascending[min(low + 1, len(ascending) - 1)]
    return float(lower + (upper - lower) * (position - low))


def _rate(times_ns: Iterable[int]) -> float:
    """Events per second between the first and the last; 0 for fewer than two."""
    times = list(times_ns)
    span = times[-1] - times[0] if len(times) > 1 else 0
    return (len(times) - 1) * 1e9 / span if span > 0 else 0.0
