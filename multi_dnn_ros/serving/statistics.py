"""What the ledger counts and times for one DNN on one camera: counters since the start, percentiles over a window."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.task import DropReason, Timing

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


@dataclass
class DnnCameraStatistics:
    """Statistics of one DNN on one camera. Always: offered == published + dropped + pending.

    latencies: end_to_end: arrival to end of publishing; decode: decoding the image, on arrival; mailbox: waiting for
    decoding and for the DNN; pre: upload and preprocessing; queue: waiting in the shared queue; compute: the layers;
    post: outputs to result; publish: from the decoded result to the end of publishing, in the node's process including
    the transfer from the engine process.
    rate_hz: results per second over the window. batch: mean frames per inference over the window.
    """

    offered: int = 0
    published: int = 0
    dropped: Counter[DropReason] = field(default_factory=Counter)
    deadline_misses: int = 0
    rate_hz: float = 0.0
    batch: float = 0.0
    latencies: dict[str, Percentiles] = field(default_factory=dict)

    @property
    def pending(self) -> int:
        return self.offered - self.published - self.dropped.total()

    def summarize(self, samples: Sequence[tuple[int, Timing]]) -> None:
        """Set rate, batch and latencies. samples: the times at which results were published, and their timings."""
        columns = {
            "end_to_end": [at - t.received_ns for at, t in samples],
            "decode": [t.decode_ns for _, t in samples],
            "mailbox": [t.mailbox_ns for _, t in samples],
            "pre": [t.pre_ns for _, t in samples],
            "queue": [t.queue_ns for _, t in samples],
            "compute": [t.compute_ns for _, t in samples],
            "post": [t.post_ns for _, t in samples],
            "publish": [at - t.finished_ns for at, t in samples],
        }
        span_ns = samples[-1][0] - samples[0][0] if samples else 0
        self.rate_hz = (len(samples) - 1) * 1e9 / span_ns if span_ns > 0 else 0.0
        self.batch = sum(t.batch for _, t in samples) / len(samples) if samples else 0.0
        self.latencies = {part: Percentiles.of(columns[part]) for part in TIMINGS}


def _quantile(ascending: npt.NDArray[np.float64], share: float) -> float:
    """The quantile, with linear interpolation like np.percentile."""
    position = share * (len(ascending) - 1)
    low = int(position)
    lower, upper = ascending[low], ascending[min(low + 1, len(ascending) - 1)]
    return float(lower + (upper - lower) * (position - low))
