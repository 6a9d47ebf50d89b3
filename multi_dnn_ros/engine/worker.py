"""A thread that runs jobs; on a GPU each on the stream of its DNN."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.backends.stream_priority import Streams
from multi_dnn_ros.engine.job import Job, loss_by
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.engine.task import DropReason

#: The CUDA stream of a DNN: name, SMs that it runs on, priority.
StreamOf = Callable[[tuple[str, int, int]], torch.cuda.Stream]


class Worker(threading.Thread):
    """Takes jobs until the queue is closed. A job that raises loses its frame and nothing else.

    Daemon, because a native call that never returns cannot be interrupted and must not keep the process from ending.
    stream_of: the same for all workers; not asked on a CPU.
    """

    def __init__(
        self,
        number: int,
        queue: JobQueue,
        device: torch.device,
        stream_of: StreamOf,
    ) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self._queue = queue
        self._device = device
        self._streams = Streams(stream_of, torch.cuda.set_stream) if device.type == "cuda" else None

    def run(self) -> None:
        # Gradient mode, device and stream are per thread in PyTorch.
        with torch.inference_mode():
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            job = self._queue.get()
            while job is not None:
                successor = self._run(job)
                job = None  # its tensors must not live on while this thread waits for the next one
                job = self._queue.get(ended=True) if successor is None else self._next(successor)

    def _run(self, job: Job) -> Job | None:
        """Run a job; what comes after it of the same frame, None when the frame is through or lost."""
        inference = job.inference
        if inference.lost is None:
            try:
                dnn = inference.task.name, inference.task.sms, inference.priority
                job.run(
                    self._device, None if self._streams is None else self._streams.enter(dnn), self._queue.lets_go_on
                )
            except BaseException as error:  # whatever a DNN raises, this thread serves the others
                inference.lost = loss_by(error, job.index)
                inference.device_failed = is_device_failure(error)
        if inference.lost is None and not job.is_last:
            return job.successor()
        inference.done(inference)
        return None

    def _next(self, successor: Job) -> Job | None:
        job = self._queue.exchange(successor)
        if job is None:
            inference = successor.inference
            inference.lost = (DropReason.SHUTDOWN, "the engine stopped between two jobs of the frame")
            inference.done(inference)
        return job
