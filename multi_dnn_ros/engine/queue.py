"""The one queue that all DNN threads fill and all workers empty."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence

from multi_dnn_ros.engine.job import Job
from multi_dnn_ros.engine.policies import Policy
from multi_dnn_ros.engine.task import DnnTask

#: Longest that a holder of the queue waits for the jobs under way; one that takes longer hangs.
PAUSE_TIMEOUT_S = 10.0
#: Of who holds a queue, of whichever engine: CUDA graphs are captured meanwhile, one at a time in a process.
_pause_lock = threading.Lock()


class JobQueue:
    """Jobs in the order of a policy.

    It needs no limit of its own: a DNN has one inference under way, which has at most one job here.

    On a GPU, launching does not wait for the kernels: what a worker has launched is ahead of every job that comes
    later, whatever its key. Where `bound_launches` was called, a job that a frame which arrives now would go before is
    therefore taken only by callers that wait for its kernels; their number bounds how many such jobs are launched and
    not finished. Jobs that nothing can go before need no bound, and never wait for one.
    """

    def __init__(self, policy: Policy, clock: Callable[[], int]) -> None:
        self._policy = policy
        self._clock = clock
        self._heap: list[tuple[int, int, Job]] = []
        self._arrivals = itertools.count()
        self._closed = False
        self._running = 0  # jobs that were taken and have not ended
        self._paused = False
        # By DNN, the smallest offset (see Policy) of the others; empty where launches are not bounded.
        self._leads: dict[str, int] = {}
        # Lock the RLock directly; via the Condition it is 10x slower. Not a plain Lock: for that a Condition checks its
        # ownership in Python on every call.
        self._lock = threading.RLock()
        self._filled = threading.Condition(self._lock)  # those wait here who take any job, or only launch
        self._bounded = threading.Condition(self._lock)  # those who wait for the kernels, where launches are bounded
        self._idle = threading.Condition(self._lock)

    def put(self, job: Job) -> bool:
        """Queue a job; False when the queue is closed: then the job stays with the caller."""
        job.queued_ns = self._clock()
        key = self._policy.key(job)
        with self._lock:
            if self._closed:
                return False
            heapq.heappush(self._heap, (key, next(self._arrivals), job))
            self._wake_one()
        return True

    def bound_launches(self, tasks: Sequence[DnnTask]) -> None:
        """Tell jobs that a frame of another of these tasks may go before from those that nothing can go before."""
        offsets = {task.name: offset for task in tasks if (offset := self._policy.offset_ns(task)) is not None}
        leads = {
            task.name: min(offset for name, offset in offsets.items() if name != task.name)
            for task in tasks
            if offsets.keys() - {task.name}
        }
        with self._lock:
            self._leads = leads

    def may_be_overtaken(self, job: Job) -> bool:
        """Whether a frame that arrives now would go before `job`. Once it is not so, it stays so."""
        lead = self._leads.get(job.inference.task.name)
        return lead is not None and self._clock() + lead < self._policy.key(job)

    def get(self, *, job_done: bool = False, waits: bool | None = None) -> Job | None:
        """Wait for the next job; None when the queue is closed. ended: the caller is through with one that it got.

        waits: where launches are bounded, whether the caller waits for the kernels of a job that may be overtaken; if
        not, it gets none of those. None: launches are not bounded.
        """
        with self._lock:
            if job_done:
                self.job_done()
            while not self._has_job_for(waits):
                if self._closed:
                    return None
                (self._bounded if waits else self._filled).wait()
            job = heapq.heappop(self._heap)[2]
            self._running += 1
            if waits is not None:
                self._wake_one()
        job.inference.queue_ns += self._clock() - job.queued_ns
        return job

    def try_acquire(self, job: Job) -> bool:
        """Whether the caller may run `job`, which is not queued, itself: none waits and none is under way.

        Saves to wake a worker for it. If so, the job counts as taken: `ended` has to follow.
        """
        job.queued_ns = self._clock()
        with self._lock:
            if self._closed or self._paused or self._running or self._heap:
                return False
            self._running += 1
        return True

    def job_done(self) -> None:
        """The caller is through with a job that it took."""
        with self._lock:
            self._running -= 1
            if self._paused:
                self._idle.notify_all()

    def may_continue(self, job: Job) -> bool:
        """Whether `job`, the next of a frame that is under way, may be run at once: none that waits has a smaller key.

        Nor, where launches are bounded, could one that arrives now.

        It has the place of the job before it: of equals, the frame that began goes on. Looks without the lock, which
        costs as much as a launch: what changes meanwhile counts from the next look on.
        """
        if self._paused or self._closed or self.may_be_overtaken(job):
            return False
        try:
            first = self._heap[0][0]
        except IndexError:
            return True
        return first >= self._policy.key(job)

    def would_run_next(self, job: Job) -> bool:
        """Whether every later job of the frame that `job` is the next of would come before all that wait, equals too.

        As `exchange` would queue them: from now on. Like `may_continue`, it looks without the lock.
        """
        if self._paused or self._closed:
            return False
        try:
            first = self._heap[0][0]
        except IndexError:
            return True
        last = Job(job.inference, len(job.inference.stages) - 1, self._clock())
        return first > self._policy.key(last)

    def exchange(self, job: Job) -> Job | None:
        """After a job whose frame goes on: queue `job`, its successor, and take the job whose turn it is.

        As `put` and `get(job_done=True)`, but in one step that wakes nobody: as many jobs wait as before. Often it is
        `job` itself. None when the queue is closed: then `job` stays with the caller. Where launches are bounded, only
        for callers that wait for the kernels.
        """
        job.queued_ns = self._clock()
        key = self._policy.key(job)
        with self._lock:
            if self._paused and not self._closed:  # not queued: close() would hand `job` out a second time
                self.job_done()
                self._filled.wait_for(lambda: self._closed or not self._paused)
                self._running += 1
            if self._closed:
                self.job_done()
                return None
            if not self._heap or self._heap[0][0] > key:
                return job
            chosen = heapq.heapreplace(self._heap, (key, next(self._arrivals), job))[2]
            if self._leads:
                self._wake_one()
        chosen.inference.queue_ns += self._clock() - chosen.queued_ns
        return chosen

    @contextlib.contextmanager
    def paused(self, timeout_s: float = PAUSE_TIMEOUT_S) -> Iterator[None]:
        """A block in which no job runs: those under way end first, the others wait.

        Capturing a CUDA graph wants it so. Blocks of several threads follow one another, also those of other engines:
        one that was stopped may still be at it. TimeoutError when a job, or another's block, does not end in time.
        """
        if not _pause_lock.acquire(timeout=timeout_s):
            raise TimeoutError(f"a queue was paused by another DNN for more than {timeout_s:g} s")
        try:
            with self._lock:
                self._paused = True
                idle = self._idle.wait_for(lambda: not self._running, timeout_s)
            if not idle:
                raise TimeoutError(f"a job did not end within {timeout_s:g} s")
            yield
        finally:
            with self._lock:
                self._paused = False
                self._filled.notify_all()
                self._bounded.notify_all()
            _pause_lock.release()

    def close(self) -> list[Job]:
        """Let every waiting worker go; gives back the jobs that nobody will run now."""
        with self._lock:
            self._closed = True
            left = [entry[2] for entry in sorted(self._heap, key=lambda entry: entry[:2])]
            self._heap.clear()
            self._filled.notify_all()
            self._bounded.notify_all()
        return left

    def _has_job_for(self, waits: bool | None) -> bool:
        if not self._heap or self._paused:
            return False
        return waits is not False or not self.may_be_overtaken(self._heap[0][2])

    def _wake_one(self) -> None:
        """Of those who may take the job whose turn it is; the caller holds the lock."""
        if not self._heap:
            return
        if self._leads and self.may_be_overtaken(self._heap[0][2]):
            self._bounded.notify()
        else:
            self._filled.notify()

    def __len__(self) -> int:
        with self._lock:
            return len(self._heap)
