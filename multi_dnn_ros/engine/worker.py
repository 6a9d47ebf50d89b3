"""A thread that runs jobs; on a GPU each on the stream of its DNN."""

from __future__ import annotations

import logging
import threading

import torch

from multi_dnn_ros.engine.job import Job
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.engine.runner import Runner
from multi_dnn_ros.engine.task import DropReason

log = logging.getLogger(__name__)


class Worker(threading.Thread):
    """Runs jobs until the queue is closed.

    A daemon thread: a native call that never returns cannot be interrupted and must not block the end of the process.
    waits_for_kernels: if launches are bounded (see JobQueue), whether the worker waits for the kernels of its jobs;
    None: launches are not bounded.
    """

    def __init__(self, number: int, queue: JobQueue, runner: Runner, *, waits_for_kernels: bool | None = None) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self._queue = queue
        self._runner = runner
        self._waits_for_kernels = waits_for_kernels

    def run(self) -> None:
        try:
            self._serve()
        except BaseException:  # an error of the engine itself; Engine.failed_threads() reports the thread
            log.exception(
                "thread %s ended with an error; its engine process is replaced (isolation: process)", self.name
            )

    def _serve(self) -> None:
        # Gradient mode is per thread in PyTorch.
        with torch.inference_mode():
            self._runner.enter_device()
            job = self._queue.get(waits_for_kernels=self._waits_for_kernels)
            while job is not None:
                successor = self._runner.run(job)
                job = None  # release its tensors while this thread waits for the next job
                job = (
                    self._next(successor)
                    if successor is not None
                    else self._queue.get(job_done=True, waits_for_kernels=self._waits_for_kernels)
                )

    def _next(self, successor: Job) -> Job | None:
        if self._waits_for_kernels is False:  # the successor may be for a worker that waits for kernels
            if self._queue.put(successor):
                return self._queue.get(job_done=True, waits_for_kernels=False)
            self._queue.job_done()
        else:
            job = self._queue.exchange(successor)
            if job is not None:
                return job
        inference = successor.inference
        inference.drop_cause = (DropReason.SHUTDOWN, "the engine stopped between two jobs of the frame")
        inference.done(inference)
        return None
