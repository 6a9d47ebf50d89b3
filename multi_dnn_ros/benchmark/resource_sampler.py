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
    """read: samples the node and its descendants; psutil.NoSuchProcess, if it has just ended, is ignored. samples: the
    list to append to.
    """

    def __init__(self, read: Callable[[], TreeSample], samples: list[NodeSample]) -> None:
        self._read = read
        self._samples = samples
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="samples")
        self._running: Future[None] | None = None
        self._next_s = 0.0

    def sample_if_due(self, period_s: float) -> None:
        """Begin a sample if the last one began at least `period_s` ago and has ended. Raises what `read` raised."""
        if self._running is not None:
            if not self._running.done():
                return
            self._running.result()
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + period_s
        self._running = self._pool.submit(self._sample)

    def close(self) -> None:
        """Wait for the sample in progress."""
        self._pool.shutdown()

    def _sample(self) -> None:
        with suppress(psutil.NoSuchProcess):
            usage, now = self._read(), time.monotonic()
            before = self._samples[-1] if self._samples else NodeSample(now, 0, 0, 0)
            cpu = (usage.cpu_s - before.cpu_s) / (now - before.at_s) if now > before.at_s else 0.0
            self._samples.append(NodeSample(now, usage.memory_bytes, usage.threads, usage.files, cpu, usage.cpu_s))
