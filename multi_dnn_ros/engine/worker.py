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
    """Takes jobs until the queue is closed.

    Daemon, because a native call that never returns cannot be interrupted and must not keep the process from ending.
    waits: whether it waits for the kernels of the jobs, where launches are bounded (see JobQueue); None: they are not.
    """

    def __init__(self, number: int, queue: JobQueue, runner: Runner, *, waits: bool | None = None) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self._queue = queue
        self._runner = runner
        self._waits = waits

    def run(self) -> None:
        try:
            self._serve()
        except BaseException:  # the engine's own fault: Engine.ended() reports the thread
            log.exception("%s ended", self.name)

    def _serve(self) -> None:
        # Gradient mode is per thread in PyTorch.
        with torch.inference_mode():
            self._runner.enter_device()
            job = self._queue.get(waits=self._waits)
            while job is not None:
                successor = self._runner.run(job)
                job = None  # its tensors must not live on while this thread waits for the next one
                job = (
                    self._next(successor)
                    if successor is not None
                    else self._queue.get(job_done=True, waits=self._waits)
                )

    def _next(self, successor: Job) -> Job | None:
        if self._waits is False:  # the next job may be one that it must not take
            if self._queue.put(successor):
                return self._queue.get(job_done=True, waits=False)
            self._queue.job_done()
        else:
            job = self._queue.exchange(successor)
            if job is not None:
                return job
        inference = successor.inference
        inference.lost = (DropReason.SHUTDOWN, "the engine stopped between two jobs of the frame")
        inference.done(inference)
        return None
