"""A thread that runs jobs, on a CUDA stream of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch

from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.engine.frame import FrameError
from multi_dnn_ros.engine.job import Inference, Job
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.engine.task import DropReason


class Worker(threading.Thread):
    """Takes jobs until the queue is closed. A job that raises loses its frame and nothing else.

    make_stream: makes the CUDA stream in the worker's own thread; None: an ordinary one of the device.

    Daemon, because a native call that never returns cannot be interrupted and must not keep the process from ending.
    """

    def __init__(
        self,
        number: int,
        queue: JobQueue,
        device: torch.device,
        make_stream: Callable[[], torch.cuda.Stream] | None = None,
    ) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self._queue = queue
        self._device = device
        self._make_stream = make_stream

    def run(self) -> None:
        # Gradient mode, device and stream are per thread in PyTorch.
        with torch.inference_mode(), _own_stream(self._device, self._make_stream):
            while (job := self._queue.get()) is not None:
                try:
                    self._run(job)
                finally:
                    self._queue.ended()
                del job  # its tensors must not live on while this thread waits for the next one

    def _run(self, job: Job) -> None:
        inference = job.inference
        if inference.lost is None:
            try:
                job.run(self._device)
            except FrameError as error:
                inference.lost = (DropReason.BAD_IMAGE, str(error))
            except BaseException as error:  # whatever a DNN raises, this thread serves the others
                inference.lost = (DropReason.DNN_ERROR, f"job {job.index}: {type(error).__name__}: {error}")
                inference.device_failed = is_device_failure(error)
        hand_over(job, inference, self._queue)


def hand_over(job: Job, inference: Inference, queue: JobQueue) -> None:
    """After a job: queue its successor, or tell the DNN's thread that the frame is through or lost."""
    if inference.lost is None and not job.is_last:
        if queue.put(Job(inference, job.index + 1)):
            return
        inference.lost = (DropReason.SHUTDOWN, "the engine stopped between two jobs of the frame")
    inference.done(inference)


@contextlib.contextmanager
def _own_stream(device: torch.device, make: Callable[[], torch.cuda.Stream] | None) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_device(device)
    with torch.cuda.stream(torch.cuda.Stream(device) if make is None else make()):
        yield
