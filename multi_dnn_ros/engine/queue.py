"""The one queue that all DNN threads fill and all workers empty."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from multi_dnn_ros.engine.job import Job
from multi_dnn_ros.engine.policies import Policy


class JobQueue:
    """Jobs in the order of a policy.

    It needs no limit of its own: a DNN has a bounded number of frames under way, and each of them at most one job here.
    """

    def __init__(self, policy: Policy, clock: Callable[[], int]) -> None:
        self._policy = policy
        self._clock = clock
        self._heap: list[tuple[int, int, Job]] = []
        self._arrivals = itertools.count()
        self._closed = False
        self._filled = threading.Condition()

    def put(self, job: Job) -> bool:
        """Queue a job; False when the queue is closed: then the job stays with the caller."""
        job.queued_ns = self._clock()
        key = self._policy.key(job)
        with self._filled:
            if self._closed:
                return False
            heapq.heappush(self._heap, (key, next(self._arrivals), job))
            self._filled.notify()
        return True

    def get(self) -> Job | None:
        """Wait for the next job; None when the queue is closed."""
        with self._filled:
            while not self._heap:
                if self._closed:
                    return None
                self._filled.wait()
            job = heapq.heappop(self._heap)[2]
        job.inference.queue_ns += self._clock() - job.queued_ns
        return job

    def close(self) -> list[Job]:
        """Let every waiting worker go; gives back the jobs that nobody will run now."""
        with self._filled:
            self._closed = True
            left = [entry[2] for entry in sorted(self._heap, key=lambda entry: entry[:2])]
            self._heap.clear()
            self._filled.notify_all()
        return left

    def __len__(self) -> int:
        with self._filled:
            return len(self._heap)
