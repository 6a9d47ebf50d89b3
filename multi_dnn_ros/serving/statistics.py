"""One DNN on one camera in the ledger: its frames without an answer, counts since the start, and recent times."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DropReason, Result, Timing
from multi_dnn_ros.serving.shared_memory import Slot

#: How much earlier than due an image is accepted, as a share of the period of max_rate_hz. Without this tolerance,
#: jitter of a camera that is as fast as the limit would make every second image come too early.
_RATE_TOLERANCE = 0.25
#: Number of service times from which the shortest is taken as the expected one, and the share of it that is expected: a
#: DNN that becomes idle before its next image is decoded has to wait.
_SERVICES, _SERVICE_SHARE = 16, 0.875
#: Maximum number of results in the window of percentiles and rates.
_SAMPLES = 4096
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


@dataclass
class OpenFrame:
    """A frame that was handed to the engines. unanswered: DNNs without an answer. readers: by DNN, the engine that may
    still read or write the buffer. holds: unanswered DNNs, running callbacks and readers; without any, the buffer is
    released.
    """

    frame: Frame
    buffer: Slot
    unanswered: set[str]
    readers: dict[str, object]
    holds: int


class Stream:
    """Guarded by the lock of the ledger. open: when each frame without an answer was handed over, by number, oldest
    first. results: those that wait for earlier frames. delivering: a callback for one of its results is running.
    """

    def __init__(self) -> None:
        self.counts = DnnCameraStatistics()
        self.samples: deque[tuple[int, Timing]] = deque(maxlen=_SAMPLES)
        self.due_ns: int | None = None  # of the next image, under max_rate_hz
        self.open: dict[int, int] = {}
        self.results: dict[int, tuple[OpenFrame, Result, object]] = {}
        self.delivering = False
        self._finished_ns = 0
        self._services_ns: deque[int] = deque(maxlen=_SERVICES)

    def is_due(self, now_ns: int, rate_hz: float) -> bool:
        """Whether an image at this time is accepted. The time at which the next one is due advances by whole periods,
        so that neither the tolerance nor the phase of the images changes the mean rate.
        """
        period_ns = round(min(1e9 / rate_hz, 1e18))  # more than 30 years
        if self.due_ns is not None and now_ns < self.due_ns - round(_RATE_TOLERANCE * period_ns):
            return False
        if self.due_ns is None or now_ns - self.due_ns >= period_ns:
            self.due_ns = now_ns
        self.due_ns += period_ns
        return True

    def add_result(self, number: int, entry: OpenFrame, result: Result, engine: object) -> None:
        """Keep a result until it is delivered, and note how long the DNN took."""
        self.results[number] = entry, result, engine
        begin_ns, end_ns = max(self._finished_ns, self.open[number]), result.timing.finished_ns
        self._services_ns.append(max(0, end_ns - begin_ns))
        self._finished_ns = max(self._finished_ns, end_ns)

    def next_start_ns(self) -> int:
        """When the DNN is expected to be done with the oldest of these frames; 0: it has none, or that is unknown."""
        for number, handed_ns in self.open.items():
            if number not in self.results and self._services_ns:
                return max(handed_ns, self._finished_ns) + int(_SERVICE_SHARE * min(self._services_ns))
        return 0

    def count_result(self, timing: Timing, now_ns: int, deadline_ns: int | None, window_ns: int) -> None:
        """A result was published. deadline_ns: from arrival; None: no deadline."""
        self.counts.published += 1
        if deadline_ns is not None and now_ns - timing.received_ns > deadline_ns:
            self.counts.deadline_misses += 1
        self.samples.append((now_ns, timing))
        while now_ns - self.samples[0][0] > window_ns:
            self.samples.popleft()


def _quantile(ascending: npt.NDArray[np.float64], share: float) -> float:
    """The quantile, with linear interpolation like np.percentile."""
    position = share * (len(ascending) - 1)
    low = int(position)
    lower, upper = ascending[low], ascending[min(low + 1, len(ascending) - 1)]
    return float(lower + (upper - lower) * (position - low))
