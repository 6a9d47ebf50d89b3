"""Runs jobs for one thread; on a GPU each on the stream of its DNN."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.backends.stream_priority import Streams
from multi_dnn_ros.engine.job import Job, loss_by
from multi_dnn_ros.engine.observer import Observer, Unobserved
from multi_dnn_ros.engine.queue import JobQueue

#: The CUDA stream of a DNN: name, SMs that it runs on, priority.
StreamOf = Callable[[tuple[str, int, int]], torch.cuda.Stream]


class Runner:
    """Belongs to one thread, which runs jobs in inference mode: a worker, or on a GPU a DNN's thread.

    A job that raises loses its frames and nothing else. observer: told of each job. stream_of: the same for all
    threads; not asked on a CPU. at_once_ns: CPU time of the jobs that no worker ran.
    """

    def __init__(
        self, queue: JobQueue, device: torch.device, stream_of: StreamOf, observer: Observer | None = None
    ) -> None:
        self._queue = queue
        self._observer = observer or Unobserved()
        self._device = device
        self._streams = Streams(stream_of, torch.cuda.set_stream) if device.type == "cuda" else None
        self.at_once_ns = 0

    def enter_device(self) -> None:
        """Called once by the thread: the current device is per thread in PyTorch."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def run_at_once(self, job: Job) -> Job | None:
        """Run a job that is not queued if nobody is before it: to wake a worker takes about as long as to launch.

        What is left for the queue, at first the job itself.
        """
        if not self._queue.take_at_once(job):
            return job
        began = time.thread_time_ns()
        with torch.inference_mode():  # not the whole thread: receivers run in it
            rest = self.run(job)
        self._queue.ended()
        self.at_once_ns += time.thread_time_ns() - began
        return rest

    def run(self, job: Job) -> Job | None:
        """Run a job; what comes after it of the same frame, None when the frame is through or lost.

        On a GPU the DNN's stream stays the thread's current one.
        """
        inference = job.inference
        if inference.lost is None:
            observer, name = self._observer, inference.task.name
            if self._streams is None or not inference.observed:
                inference.observed = self._streams is not None  # on a GPU its outputs end it
                observer.began(name)
            try:
                dnn = name, inference.task.sms, inference.priority
                job.run(
                    self._device, None if self._streams is None else self._streams.enter(dnn), self._queue.may_continue
                )
            except BaseException as error:  # whatever a DNN raises, this thread serves the others, or its next frames
                if is_device_failure(error):
                    observer.device_failed(name, error)
                inference.lost = loss_by(error, job.index)
            if self._streams is None:
                observer.ended(name)
        if inference.lost is None and not job.is_last:
            return job.successor()
        inference.done(inference)
        return None
