"""Runs jobs for one thread; on a GPU each on the stream of its DNN."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.backends.stream_priority import Streams
from multi_dnn_ros.engine.job import Job, loss_from_error
from multi_dnn_ros.engine.observer import NullObserver, Observer
from multi_dnn_ros.engine.queue import JobQueue

#: The CUDA stream of a DNN: name, SMs that it runs on, priority.
StreamOf = Callable[[tuple[str, int, int]], torch.cuda.Stream]


class Runner:
    """Belongs to one thread, which runs jobs in inference mode: a worker, or on a GPU a DNN's thread.

    A job that raises loses its frames and nothing else. observer: told of each job. stream_of: the same for all
    threads; not asked on a CPU. waits: on a GPU, whether it waits for the kernels of a job that may be overtaken (see
    JobQueue); its thread sleeps then. whole: whether a frame on a CPU runs as one network, asked with its second
    job. launch_ns: CPU time of the jobs that no worker ran.
    """

    def __init__(
        self,
        queue: JobQueue,
        device: torch.device,
        stream_of: StreamOf,
        observer: Observer | None = None,
        *,
        whole: Callable[[Job], bool] = lambda job: False,
        waits: bool = False,
    ) -> None:
        self._queue = queue
        self._observer = observer or NullObserver()
        # Blocking: one that does not sleep takes a core for as long as the kernels run.
        self._finished = torch.cuda.Event(blocking=True) if waits else None
        self._device = device
        self._whole = whole
        self._streams = Streams(stream_of, torch.cuda.set_stream) if device.type == "cuda" else None
        self.launch_ns = 0

    def enter_device(self) -> None:
        """Called once by the thread: the current device is per thread in PyTorch."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def try_run(self, job: Job) -> Job | None:
        """Run a job that is not queued if nobody is before it: to wake a worker takes about as long as to launch.

        What is left for the queue, at first the job itself.
        """
        if not self._queue.try_acquire(job):
            return job
        began = time.thread_time_ns()
        with torch.inference_mode():  # not the whole thread: receivers run in it
            rest = self.run(job)
        self._queue.job_done()
        self.launch_ns += time.thread_time_ns() - began
        return rest

    def run(self, job: Job) -> Job | None:
        """Run a job; what comes after it of the same frame, None when the frame is through or lost.

        On a GPU the DNN's stream stays the thread's current one.
        """
        inference = job.inference
        finished = self._finished if self._finished is not None and self._queue.may_be_overtaken(job) else None
        if inference.lost is None:
            observer, name = self._observer, inference.task.name
            if self._streams is None or not inference.observed:
                inference.observed = self._streams is not None  # on a GPU its outputs end it
                observer.began(name)
            try:
                dnn = name, inference.task.sms, inference.priority
                stream = None if self._streams is None else self._streams.enter(dnn)
                job.run(self._device, stream, self._whole if stream is None else self._queue.may_continue)
                if finished is not None:
                    finished.record(stream)
            except BaseException as error:  # whatever a DNN raises, this thread serves the others, or its next frames
                if is_device_failure(error):
                    observer.device_failed(name, error)
                inference.lost = loss_from_error(error, job.index)
            if self._streams is None:
                observer.ended(name)
        continues = inference.lost is None and not job.is_last
        if not continues:
            inference.done(inference)
        if finished is None or inference.lost is not None:
            return job.successor() if continues else None
        try:
            finished.synchronize()
        except Exception as error:  # a kernel's failure; of a frame's last job its DNN meets it, too
            if is_device_failure(error):
                self._observer.device_failed(inference.task.name, error)
            if continues:
                inference.lost = loss_from_error(error, job.index)
                inference.done(inference)
            return None
        return job.successor() if continues else None
