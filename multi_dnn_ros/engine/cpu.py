"""Runs inferences on a CPU: job by job, in the threads of the DNNs, which wait in one queue for a slot."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterable

from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.backends.host import CPU
from multi_dnn_ros.backends.static_stages import split_rows, stack_inputs
from multi_dnn_ros.engine.inference import STOPPED, Inference
from multi_dnn_ros.engine.policies import Policy
from multi_dnn_ros.engine.reports import Observer
from multi_dnn_ros.engine.task import DnnTask


class CpuRunner:
    """Runs an inference to its end in the calling thread, which holds one of a number of slots while it runs a job.

    Jobs that wait for a slot are ordered by the policy. Between two jobs a thread passes its slot on if another job
    comes first, so the jobs of all DNNs are in one queue (Kim, Kim, Kim 2022, section 3.2), and handing over wakes one
    thread. A DNN has at most one inference in progress, so the queue needs no size limit.

    A frame runs as one call of the whole network, which costs less than its jobs, while nobody waits and if nobody can
    have to overtake it: no other DNN by the policy, or each DNN has a slot.

    workers: number of slots. :meth:`update` must be called before :meth:`run`.
    """

    def __init__(self, workers: int, policy: Policy, clock: Callable[[], int], observer: Observer) -> None:
        self._workers = self._free = workers
        self._policy = policy
        self._whole: frozenset[str] = frozenset()  # DNNs that nobody can have to overtake
        self._clock = clock
        self._observer = observer
        self._lock = threading.Lock()
        # Key, number, and a lock that its thread waits for and that is released to wake it.
        self._waiting: list[tuple[int, int, threading.Lock]] = []
        self._numbers = itertools.count()
        self._closed = False

    def run(self, inference: Inference) -> None:
        """Run the inference. An error, or the engine's end, is left in its `drop_cause`."""
        if not self._has_slot(inference, 0):
            inference.drop_cause = STOPPED
            return
        try:
            self._run(inference)
        finally:
            with self._lock:
                if self._waiting:
                    heapq.heappop(self._waiting)[2].release()
                else:
                    self._free += 1

    def update(self, tasks: Iterable[DnnTask]) -> None:
        """Use the current settings of all tasks."""
        dnns = list(tasks)
        self._whole = frozenset(
            task.name
            for task in dnns
            if self._workers >= len(dnns) or not any(self._policy.may_overtake(it, task) for it in dnns if it != task)
        )

    def close(self) -> None:
        """Let the frames that wait for a slot end without a result."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        for _, _, turn in waiting:
            turn.release()

    # -- the slots

    def _has_slot(self, inference: Inference, job: int) -> bool:
        """Wait for a slot, or between two jobs pass it on and wait for another one if a waiting job comes before.

        job: index of the next job. False if the engine has stopped.
        """
        queued_ns = self._clock()
        key = self._policy.key(inference, queued_ns, job)
        with self._lock:
            if self._closed:
                return False
            if not job and self._free:  # then nobody waits
                self._free -= 1
                return True
            if job and (not self._waiting or self._waiting[0][0] > key):
                return True
            turn = threading.Lock()
            turn.acquire()
            heapq.heappush(self._waiting, (key, next(self._numbers), turn))
            if job:
                heapq.heappop(self._waiting)[2].release()
        turn.acquire()
        inference.queue_ns += self._clock() - queued_ns
        return not self._closed

    # -- the jobs

    def _run(self, inference: Inference) -> None:
        name = inference.task.name
        job, observed = 0, True
        self._observer.began(name)
        try:
            begin = self._clock()
            images = list(inference.images(CPU, lambda error: False))
            batch, stages = inference.task.stages_for(len(images))
            whole = inference.task.single_launch.get(batch)
            if whole is not None and name in self._whole and not self._waiting:  # without the lock: may be out of date
                stages = (whole,)
            if batch > 1:  # padded
                images = [stack_inputs(images + images[-1:] * (batch - len(images)), stages[0])]
            carried = images[0]
            inference.pre_ns = self._clock() - begin
            for job, stage in enumerate(stages):
                if job:
                    self._observer.ended(name)
                    observed = False
                    if not self._has_slot(inference, job):
                        inference.drop_cause = STOPPED
                        return
                    self._observer.began(name)
                    observed = True
                begin = self._clock()
                carried = stage(carried)
                inference.compute_ns += self._clock() - begin
            inference.rows = split_rows(carried, len(inference.frames) - len(inference.failed))
        except BaseException as error:  # whatever error a DNN raises, the thread must continue
            if is_device_failure(error):  # of a device that a backend uses, such as an accelerator of ONNX Runtime
                self._observer.device_failed(name, error)
            inference.fail(error, job)
        finally:
            if observed:
                self._observer.ended(name)
