"""The one queue that all DNN threads fill and all workers empty."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections.abc import Callable, Iterator

from multi_dnn_ros.engine.job import Job
from multi_dnn_ros.engine.policies import Policy

#: Longest that a holder of the queue waits for the jobs under way; one that takes longer hangs.
HOLD_TIMEOUT_S = 10.0
#: Of who holds a queue, of whichever engine: CUDA graphs are captured meanwhile, one at a time in a process.
_alone = threading.Lock()


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
        self._running = 0  # jobs that were taken and have not ended
        self._held = False
        # Lock the RLock directly; via the Condition it is 10x slower. Not a plain Lock: for that a Condition checks its
        # ownership in Python on every call.
        self._lock = threading.RLock()
        self._filled = threading.Condition(self._lock)
        self._calm = threading.Condition(self._lock)

    def put(self, job: Job) -> bool:
        """Queue a job; False when the queue is closed: then the job stays with the caller."""
        job.queued_ns = self._clock()
        key = self._policy.key(job)
        with self._lock:
            if self._closed:
                return False
            heapq.heappush(self._heap, (key, next(self._arrivals), job))
            self._filled.notify()
        return True

    def get(self, *, ended: bool = False) -> Job | None:
        """Wait for the next job; None when the queue is closed. ended: the caller is through with one that it got."""
        with self._lock:
            if ended:
                self.ended()
            while not self._heap or self._held:
                if self._closed:
                    return None
                self._filled.wait()
            job = heapq.heappop(self._heap)[2]
            self._running += 1
        job.inference.queue_ns += self._clock() - job.queued_ns
        return job

    def take_at_once(self, job: Job) -> bool:
        """Whether the caller may run `job`, which is not queued, itself: none waits and none is under way.

        Saves to wake a worker for it. If so, the job counts as taken: `ended` has to follow.
        """
        job.queued_ns = self._clock()
        with self._lock:
            if self._closed or self._held or self._running or self._heap:
                return False
            self._running += 1
        return True

    def ended(self) -> None:
        """The caller is through with a job that it took."""
        with self._lock:
            self._running -= 1
            if self._held:
                self._calm.notify_all()

    def may_continue(self, job: Job) -> bool:
        """Whether `job`, the next of a frame that is under way, may be run at once: none that waits has a smaller key.

        It has the place of the job before it: of equals, the frame that began goes on. Looks without the lock, which
        costs as much as a launch: what changes meanwhile counts from the next look on.
        """
        if self._held or self._closed:
            return False
        try:
            first = self._heap[0][0]
        except IndexError:
            return True
        return first >= self._policy.key(job)

    def is_next(self, job: Job) -> bool:
        """Whether `job`, the next of a frame that is under way, comes before every job that waits, equals too.

        As `may_continue`, it looks without the lock.
        """
        if self._held or self._closed:
            return False
        try:
            first = self._heap[0][0]
        except IndexError:
            return True
        return first > self._policy.key(job)

    def exchange(self, job: Job) -> Job | None:
        """After a job whose frame goes on: queue `job`, its successor, and take the job whose turn it is.

        As `put` and `get(ended=True)`, but in one step that wakes nobody: as many jobs wait as before. Often it is
        `job` itself. None when the queue is closed: then `job` stays with the caller.
        """
        job.queued_ns = self._clock()
        key = self._policy.key(job)
        with self._lock:
            if self._held and not self._closed:  # not queued: close() would hand `job` out a second time
                self.ended()
                self._filled.wait_for(lambda: self._closed or not self._held)
                self._running += 1
            if self._closed:
                self.ended()
                return None
            if not self._heap or self._heap[0][0] > key:
                return job
            chosen = heapq.heapreplace(self._heap, (key, next(self._arrivals), job))[2]
        chosen.inference.queue_ns += self._clock() - chosen.queued_ns
        return chosen

    @contextlib.contextmanager
    def held(self, timeout_s: float = HOLD_TIMEOUT_S) -> Iterator[None]:
        """A block in which no job runs: those under way end first, the others wait.

        Capturing a CUDA graph wants it so. Blocks of several threads follow one another, also those of other engines:
        one that was stopped may still be at it. TimeoutError when a job, or another's block, does not end in time.
        """
        if not _alone.acquire(timeout=timeout_s):
            raise TimeoutError(f"a queue was held by another DNN for more than {timeout_s:g} s")
        try:
            with self._lock:
                self._held = True
                calm = self._calm.wait_for(lambda: not self._running, timeout_s)
            if not calm:
                raise TimeoutError(f"a job did not end within {timeout_s:g} s")
            yield
        finally:
            with self._lock:
                self._held = False
                self._filled.notify_all()
            _alone.release()

    def close(self) -> list[Job]:
        """Let every waiting worker go; gives back the jobs that nobody will run now."""
        with self._lock:
            self._closed = True
            left = [entry[2] for entry in sorted(self._heap, key=lambda entry: entry[:2])]
            self._heap.clear()
            self._filled.notify_all()
        return left

    def __len__(self) -> int:
        with self._lock:
            return len(self._heap)
