"""Samples the resources of a node in a thread, so that the observer's receipt of results is not delayed.

The kernel needs over 10 ms to add up the memory of an engine process of 650 MB. A result that arrives meanwhile would
seem to be that much older.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import psutil

from multi_dnn_ros.benchmark.process_tree import TreeSample
from multi_dnn_ros.benchmark.samples import NodeSample


class ResourceSampler:
    """sample: takes a sample and keeps it; psutil.NoSuchProcess, if the node has just ended, is ignored."""

    def __init__(self, sample: Callable[[], None]) -> None:
        self._sample = sample
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="samples")
        self._running: Future[None] | None = None
        self._next_s = 0.0

    def sample_if_due(self, period_s: float) -> None:
        """Begin a sample if the last one began at least `period_s` ago and has ended. Raises what `sample` raised."""
        if self._running is not None:
            if not self._running.done():
                return
            self._running.result()
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + period_s
        self._running = self._pool.submit(self._take)

    def close(self) -> None:
        """Wait for the sample in progress. May be called twice."""
        self._pool.shutdown()

    def _take(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self._sample()


def append_node_sample(samples: list[NodeSample], read: Callable[[], TreeSample]) -> None:
    """Append what `read` says of the node and its descendants, and the cores they have used since the last sample.

    Raises what `read` raises.
    """
    usage, now = read(), time.monotonic()
    before = samples[-1] if samples else NodeSample(now, 0, 0, 0)
    cpu = (usage.cpu_s - before.cpu_s) / (now - before.at_s) if now > before.at_s else 0.0
    samples.append(NodeSample(now, usage.memory_bytes, usage.threads, usage.files, cpu, usage.cpu_s))
