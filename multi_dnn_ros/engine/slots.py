"""The job queue of a CPU: the DNN threads wait in it for the right to compute."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from multi_dnn_ros.engine.inference import Inference
from multi_dnn_ros.engine.policies import Policy


class _Waiter:
    """A thread that waits. granted: whether it got a slot; False: the queue was closed."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._turn.acquire()
        self.granted = False

    def wake(self, *, granted: bool) -> None:
        self.granted = granted
        self._turn.release()

    def wait(self) -> bool:
        self._turn.acquire()
        return self.granted


class Slots:
    """A number of slots; the thread of a DNN holds one while it runs a job.

    Jobs that wait are ordered by the policy. Between two jobs a thread passes its slot on if another job comes first,
    so the jobs of all DNNs are in one queue (Kim, Kim, Kim 2022, section 3.2), and handing over wakes one thread.

    A DNN has at most one inference in progress, so the queue needs no size limit.
    """

    def __init__(self, slots: int, policy: Policy, clock: Callable[[], int]) -> None:
        self._free = slots
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, _Waiter]] = []
        self._numbers = itertools.count()
        self._closed = False

    def acquire(self, inference: Inference) -> bool:
        """Wait for a slot for the inference's first job. False if the queue is closed."""
        queued_ns = self._clock()
        key = self._policy.key(inference, queued_ns)
        with self._lock:
            if self._closed:
                return False
            if self._free:  # then nobody waits
                self._free -= 1
                return True
            waiter = self._put(key)
        return self._wait(waiter, inference, queued_ns)

    def keep(self, inference: Inference, job: int) -> bool:
        """Between two jobs: pass the slot on and wait for another one, if a waiting job comes before the next one.

        job: index of the next job. False if the queue is closed: the caller then has no slot.
        """
        queued_ns = self._clock()
        key = self._policy.key(inference, queued_ns, job)
        with self._lock:
            if self._closed:
                self._free += 1
                return False
            if not self._waiting or self._waiting[0][0] > key:
                return True
            waiter = self._put(key)
            heapq.heappop(self._waiting)[2].wake(granted=True)
        return self._wait(waiter, inference, queued_ns)

    def release(self) -> None:
        """Give the slot to the first waiting job."""
        with self._lock:
            if self._waiting:
                heapq.heappop(self._waiting)[2].wake(granted=True)
            else:
                self._free += 1

    @property
    def has_waiting(self) -> bool:
        """Whether a job waits. Read without the lock: may be out of date."""
        return bool(self._waiting)

    def close(self) -> None:
        """Wake all waiting threads, without a slot."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        for _, _, waiter in waiting:
            waiter.wake(granted=False)

    def _put(self, key: int) -> _Waiter:
        waiter = _Waiter()
        heapq.heappush(self._waiting, (key, next(self._numbers), waiter))
        return waiter

    def _wait(self, waiter: _Waiter, inference: Inference, queued_ns: int) -> bool:
        granted = waiter.wait()
        inference.queue_ns += self._clock() - queued_ns
        return granted
