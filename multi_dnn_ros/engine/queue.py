"""The job queue shared by all DNN threads (producers) and workers (consumers)."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence

from multi_dnn_ros.engine.job import Job
from multi_dnn_ros.engine.policies import Policy
from multi_dnn_ros.engine.task import DnnTask

#: Maximum wait of :meth:`JobQueue.paused` for the running jobs; a job that takes longer counts as hanging.
PAUSE_TIMEOUT_S = 10.0
#: Serializes pauses across all engines of the process: CUDA graphs are captured meanwhile, one at a time per process.
_pause_lock = threading.Lock()


class JobQueue:
    """Jobs in the order of a policy.

    Needs no size limit: a DNN has at most one inference in progress, and an inference at most one job in the queue.

    On a GPU a launch does not wait for its kernels, so a launched job precedes every later one, whatever its key. After
    `bound_launches`, a job that a newly arriving frame could overtake is given only to callers that wait for its
    kernels. The number of those callers bounds how many such jobs are launched and unfinished. Jobs that cannot be
    overtaken are not bounded.

    slots: maximum number of jobs that run at the same time, whichever threads run them. None: one for each caller of
    `get`, and `try_acquire` needs an idle queue.
    """

    def __init__(self, policy: Policy, clock: Callable[[], int], slots: int | None = None) -> None:
        self._policy = policy
        self._clock = clock
        self._slots = slots
        self._heap: list[tuple[int, int, Job]] = []
        self._arrivals = itertools.count()
        self._closed = False
        self._running = 0  # jobs taken and not yet done
        self._resuming = 0  # callers of exchange that wait for the end of a pause; they keep their slots
        self._outside = 0  # callers inside outside_jobs
        self._paused = False
        # By DNN: the smallest offset (see Policy.offset_ns) of all other DNNs. Empty: launches are not bounded.
        self._min_other_offset_ns: dict[str, int] = {}
        # Lock the RLock directly; via the Condition it is 10x slower. With a plain Lock, Condition checks ownership in
        # Python on every call.
        self._lock = threading.RLock()
        self._filled = threading.Condition(self._lock)  # callers that take any job, or that only launch
        self._bounded = threading.Condition(self._lock)  # callers that wait for kernels, if launches are bounded
        self._idle = threading.Condition(self._lock)

    def put(self, job: Job) -> bool:
        """Queue a job. False if the queue is closed: the job stays with the caller."""
        job.queued_ns = self._clock()
        key = self._policy.key(job)
        with self._lock:
            if self._closed:
                return False
            heapq.heappush(self._heap, (key, next(self._arrivals), job))
            self._wake_one()
        return True

    def bound_launches(self, tasks: Sequence[DnnTask]) -> None:
        """Bound the launches of jobs that a frame of another of these tasks could overtake."""
        offsets = {task.name: offset for task in tasks if (offset := self._policy.offset_ns(task)) is not None}
        min_other_offsets = {
            task.name: min(offset for name, offset in offsets.items() if name != task.name)
            for task in tasks
            if offsets.keys() - {task.name}
        }
        with self._lock:
            self._min_other_offset_ns = min_other_offsets
            self._wake_one()  # another kind of caller than the one woken by put() may have to take the next job

    def may_be_overtaken(self, job: Job) -> bool:
        """Whether a frame that arrives now would run before `job`.

        Once False, it stays False until the next `bound_launches`.
        """
        offset_ns = self._min_other_offset_ns.get(job.inference.task.name)
        return offset_ns is not None and self._clock() + offset_ns < self._policy.key(job)

    def get(self, *, job_done: bool = False, waits_for_kernels: bool | None = None) -> Job | None:
        """Wait for the next job; None once the queue is closed. job_done: the caller's previous job is done.

        waits_for_kernels: if launches are bounded, whether the caller waits for the kernels of jobs that may be
        overtaken; a caller that does not wait never gets such a job. None: launches are not bounded.
        """
        with self._lock:
            if job_done:
                self.job_done()
            while not self._has_job_for(waits_for_kernels):
                if self._closed:
                    return None
                (self._bounded if waits_for_kernels else self._filled).wait()
            job = heapq.heappop(self._heap)[2]
            self._running += 1
            if waits_for_kernels is not None:
                self._wake_one()
        job.inference.queue_ns += self._clock() - job.queued_ns
        return job

    def try_acquire(self, job: Job) -> bool:
        """Claim the right to run `job` directly: True if no job is queued and a slot is free.

        Saves waking a worker. If True, the job counts as taken and the caller must call :meth:`release`.
        """
        job.queued_ns = self._clock()
        with self._lock:
            taken = self._running if self._slots is None else not self._has_slot()
            if self._closed or self._paused or self._heap or taken:
                return False
            self._running += 1
        return True

    def may_run_successor(self, job: Job) -> bool:
        """Whether the caller, which ran the previous job of the inference, may run `job`, too: whether `exchange` would
        return it.

        Sets `job.queued_ns`.
        """
        job.queued_ns = self._clock()
        key = self._policy.key(job)
        with self._lock:
            return not (self._paused or self._closed or (self._heap and self._heap[0][0] <= key))

    def release(self) -> None:
        """The job of a caller of `try_acquire` is done; a worker takes the next one, if any is queued."""
        with self._lock:
            self.job_done()
            if self._slots is not None:
                self._wake_one()

    def job_done(self) -> None:
        """The caller's job is done."""
        with self._lock:
            self._running -= 1
            if self._paused:
                self._idle.notify_all()

    @contextlib.contextmanager
    def outside_jobs(self) -> Iterator[bool]:
        """Context for work on the device that belongs to no job: it takes no slot, but a pause waits for its end, and
        it waits for the end of a pause. Yields False if the queue was closed during a pause: the work must be left out.
        """
        with self._lock:
            self._filled.wait_for(lambda: self._closed or not self._paused)
            allowed = not self._paused
            self._outside += 1
        try:
            yield allowed
        finally:
            with self._lock:
                self._outside -= 1
                if self._paused:
                    self._idle.notify_all()

    def may_continue(self, job: Job) -> bool:
        """Whether `job`, the next of an inference in progress, may run now: no queued job has a smaller key.

        If launches are bounded, also: no frame that arrives now could overtake it. If keys are equal, the inference in
        progress continues. Reads without the lock, which would cost as much as a launch; a concurrent change takes
        effect at the next call.
        """
        if self._paused or self._closed or self.may_be_overtaken(job):
            return False
        try:
            first = self._heap[0][0]
        except IndexError:
            return True
        return first >= self._policy.key(job)

    def precedes_all_queued(self, job: Job) -> bool:
        """Whether `job` and all later jobs of its inference have smaller keys than every queued job.

        Assumes that these jobs are queued now, as `exchange` would queue them. Like `may_continue`, it reads without
        the lock.
        """
        if self._paused or self._closed:
            return False
        try:
            first = self._heap[0][0]
        except IndexError:
            return True
        last = Job(job.inference, len(job.inference.stages) - 1, self._clock())
        return first > self._policy.key(last)

    def delays_no_inference(self, job: Job) -> bool:
        """Whether running `job` and all later jobs of its inference first makes no queued inference end later.

        Assumes one worker. If these jobs did not run first, a queued inference with an equal key would take turns with
        this one and have the first turn. If it has more jobs left, it ends after this one in either case.
        """
        jobs = len(job.inference.stages)
        key = self._policy.key(Job(job.inference, jobs - 1, self._clock()))
        with self._lock:
            if self._paused or self._closed:
                return False
            return all(
                other_key > key or (other_key == key and len(other.inference.stages) - other.index > jobs - job.index)
                for other_key, _, other in self._heap
            )

    def exchange(self, job: Job) -> Job | None:
        """Queue `job`, the successor of the caller's finished job, and return the job to run next.

        Equivalent to `put` followed by `get(job_done=True)`, but atomic, and it wakes no other thread because the
        number of queued jobs stays the same. The result is often `job` itself. None once the queue is closed: `job`
        stays with the caller. If launches are bounded, only for callers that wait for kernels.
        """
        job.queued_ns = self._clock()
        key = self._policy.key(job)
        with self._lock:
            if self._paused and not self._closed:  # `job` is not queued: close() would return it, too
                self.job_done()
                self._resuming += 1
                self._filled.wait_for(lambda: self._closed or not self._paused)
                self._resuming -= 1
                self._running += 1
            if self._closed:
                self.job_done()
                return None
            if not self._heap or self._heap[0][0] > key:
                return job
            chosen = heapq.heapreplace(self._heap, (key, next(self._arrivals), job))[2]
            if self._min_other_offset_ns:
                self._wake_one()
        chosen.inference.queue_ns += self._clock() - chosen.queued_ns
        return chosen

    @contextlib.contextmanager
    def paused(self, timeout_s: float = PAUSE_TIMEOUT_S) -> Iterator[None]:
        """Context in which no job runs, and nothing in :meth:`outside_jobs`: what runs finishes first, the rest waits.

        Required for capturing a CUDA graph. Pauses are serialized across all engines of the process, because a stopped
        engine may still be capturing. Raises TimeoutError if a running job, or another pause, does not end in time.
        """
        if not _pause_lock.acquire(timeout=timeout_s):
            raise TimeoutError(f"a queue was paused by another DNN for more than {timeout_s:g} s")
        try:
            with self._lock:
                self._paused = True
                idle = self._idle.wait_for(lambda: not self._running and not self._outside, timeout_s)
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
        """Wake all waiting workers; return the jobs that were never run."""
        with self._lock:
            self._closed = True
            left = [entry[2] for entry in sorted(self._heap, key=lambda entry: entry[:2])]
            self._heap.clear()
            self._filled.notify_all()
            self._bounded.notify_all()
        return left

    def _has_job_for(self, waits_for_kernels: bool | None) -> bool:
        if not self._heap or self._paused or not self._has_slot():
            return False
        return waits_for_kernels is not False or not self.may_be_overtaken(self._heap[0][2])

    def _has_slot(self) -> bool:
        return self._slots is None or self._running + self._resuming < self._slots

    def _wake_one(self) -> None:
        """Wake one caller that may take the next job. The caller holds the lock."""
        if not self._heap or not self._has_slot():
            return
        if self._min_other_offset_ns and self.may_be_overtaken(self._heap[0][2]):
            self._bounded.notify()
        else:
            self._filled.notify()

    def __len__(self) -> int:
        with self._lock:
            return len(self._heap)
