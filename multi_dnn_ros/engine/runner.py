"""Runs jobs for one thread; on a GPU each on the stream of its DNN."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from multi_dnn_ros.backends.stream_priority import Streams
from multi_dnn_ros.engine.job import Job, loss_by
from multi_dnn_ros.engine.queue import JobQueue

#: The CUDA stream of a DNN: name, SMs that it runs on, priority.
StreamOf = Callable[[tuple[str, int, int]], torch.cuda.Stream]


class Runner:
    """Belongs to one thread, which runs jobs in inference mode: a worker, or on a GPU a DNN's thread.

    A job that raises loses its frames and nothing else. stream_of: the same for all threads; not asked on a CPU.
    whole: whether a frame on a CPU runs as one network, asked with its second job. at_once_ns: CPU time of the jobs
    that no worker ran.
    """

    def __init__(
        self,
        queue: JobQueue,
        device: torch.device,
        stream_of: StreamOf,
        whole: Callable[[Job], bool] = lambda job: False,
    ) -> None:
        self._queue = queue
        self._device = device
        self._whole = whole
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
            try:
                dnn = inference.task.name, inference.task.sms, inference.priority
                if self._streams is None:
                    job.run(self._device, None, self._whole)
                else:
                    job.run(self._device, self._streams.enter(dnn), self._queue.may_continue)
            except BaseException as error:  # whatever a DNN raises, this thread serves the others, or its next frames
                inference.lost = loss_by(error, job.index)
        if inference.lost is None and not job.is_last:
            return job.successor()
        inference.done(inference)
        return None
