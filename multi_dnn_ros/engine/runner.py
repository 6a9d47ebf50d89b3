"""Runs jobs for one thread; on a GPU each on the stream of its DNN."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.backends.stream_priority import ThreadStreams
from multi_dnn_ros.engine.job import Job, drop_cause_from_error
from multi_dnn_ros.engine.observer import NullObserver, Observer
from multi_dnn_ros.engine.queue import JobQueue

#: Returns the CUDA stream of a DNN, given its name, number of SMs and priority.
StreamOf = Callable[[tuple[str, int, int]], torch.cuda.Stream]


class Runner:
    """Runs jobs in inference mode for one thread: a worker, or a DNN's thread.

    If a job raises, only its frames are dropped.

    observer: see :class:`Observer`. stream_of: shared by all threads; not called on a CPU.
    waits_for_kernels: on a GPU, whether to wait (sleeping) for the kernels of a job that may be overtaken, see
    JobQueue.
    single_call: called with the second job of a frame on a CPU; returns whether the frame runs as one call.
    launch_ns: CPU time of the jobs that `try_run` ran.
    """

    def __init__(
        self,
        queue: JobQueue,
        device: torch.device,
        stream_of: StreamOf,
        observer: Observer | None = None,
        *,
        single_call: Callable[[Job], bool] = lambda job: False,
        waits_for_kernels: bool = False,
    ) -> None:
        self._queue = queue
        self._observer = observer or NullObserver()
        self._finished = torch.cuda.Event(blocking=True) if waits_for_kernels else None  # see EventPool
        self._device = device
        self._single_call = single_call
        self._streams = ThreadStreams(stream_of, torch.cuda.set_stream) if device.type == "cuda" else None
        self.launch_ns = 0

    def enter_device(self) -> None:
        """Select the device; called once by the thread, because PyTorch's current device is per thread."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def try_run(self, job: Job) -> Job | None:
        """Run a job that is not queued if no other job waits and a slot is free, which saves waking a worker.

        On a CPU, also run the next jobs of the inference, until a queued job comes before the next one, which is then
        queued. Returns the job that the caller has to queue: the job itself if it was not run, its successor if the
        queue is closed, otherwise None.
        """
        if not self._queue.try_acquire(job):
            return job
        began = time.thread_time_ns()
        try:
            with torch.inference_mode():  # not for the whole thread, which also runs callbacks
                rest = self.run(job)
                while rest is not None and self._streams is None and self._queue.may_run_successor(rest):
                    rest = self.run(rest)
            if rest is not None and self._queue.put(rest):  # before the slot is free, so that one worker wakes
                rest = None
        finally:
            self._queue.release()
        self.launch_ns += time.thread_time_ns() - began
        return rest

    def run(self, job: Job) -> Job | None:
        """Run a job and return its successor; None if the inference is finished or dropped.

        On a GPU the DNN's stream remains the thread's current stream.
        """
        inference = job.inference
        finished = self._finished if self._finished is not None and self._queue.may_be_overtaken(job) else None
        if inference.drop_cause is None:
            observer, name = self._observer, inference.task.name
            if self._streams is None or not inference.observed:
                inference.observed = self._streams is not None  # on a GPU await_outputs reports the end
                observer.began(name)
            try:
                dnn = name, inference.task.sms, inference.priority
                stream = None if self._streams is None else self._streams.enter(dnn)
                job.run(self._device, stream, self._single_call if stream is None else self._queue.may_continue)
                if finished is not None:
                    finished.record(stream)
            except BaseException as error:  # whatever error a DNN raises, this thread must continue
                if is_device_failure(error):
                    observer.device_failed(name, error)
                inference.drop_cause = drop_cause_from_error(error, job.index)
            if self._streams is None:
                observer.ended(name)
        continues = inference.drop_cause is None and not job.is_last
        if not continues:
            inference.done(inference)
        if finished is None or inference.drop_cause is not None:
            return job.successor() if continues else None
        try:
            finished.synchronize()
        except Exception as error:  # a kernel failed; for the last job, the DNN's thread gets the error, too
            if is_device_failure(error):
                self._observer.device_failed(inference.task.name, error)
            if continues:
                inference.drop_cause = drop_cause_from_error(error, job.index)
                inference.done(inference)
            return None
        return job.successor() if continues else None
