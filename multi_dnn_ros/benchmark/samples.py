"""What the observer of a benchmark stores: results that it received, and resources of the node."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass


class Receipts:
    """Results received on one stream. at_s: monotonic clock. latency_ms: from the image's stamp to the receipt.

    Stored in arrays: as objects they would lengthen the garbage collector's pauses and thereby the latencies.
    """

    def __init__(self) -> None:
        self.at_s = array("d")
        self.latency_ms = array("d")

    def add(self, at_s: float, latency_ms: float) -> None:
        self.at_s.append(at_s)
        self.latency_ms.append(latency_ms)

    def between(self, begin_s: float, end_s: float) -> list[float]:
        """Latencies of results received in [begin_s, end_s)."""
        first, last = bisect_left(self.at_s, begin_s), bisect_left(self.at_s, end_s)
        return self.latency_ms[first:last].tolist()

    def __len__(self) -> int:
        return len(self.at_s)


@dataclass(frozen=True)
class NodeSample:
    """Resources of the node, engine processes included. at_s: monotonic clock.

    cpu: mean number of busy cores since the previous sample. cpu_s: CPU time since the start.
    """

    at_s: float
    resident_bytes: int
    threads: int
    files: int
    cpu: float = 0.0
    cpu_s: float = 0.0
