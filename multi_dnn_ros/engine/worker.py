"""A thread that runs jobs, on CUDA streams of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.backends.green_contexts import make_stream
from multi_dnn_ros.backends.stream_priority import Streams
from multi_dnn_ros.engine.frame import FrameError
from multi_dnn_ros.engine.job import Inference, Job
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.engine.task import DropReason


class Worker(threading.Thread):
    """Takes jobs until the queue is closed. A job that raises loses its frame and nothing else.

    Daemon, because a native call that never returns cannot be interrupted and must not keep the process from ending.
    stream_priority: of the CUDA stream for jobs of a DNN priority.
    """

    def __init__(
        self,
        number: int,
        queue: JobQueue,
        device: torch.device,
        stream_priority: Callable[[int], int] = lambda priority: 0,
    ) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self._queue = queue
        self._device = device
        self._stream_priority = stream_priority
        self._streams: Streams[tuple[int, int], torch.cuda.Stream] | None = None

    def run(self) -> None:
        # Gradient mode, device and stream are per thread in PyTorch.
        with torch.inference_mode():
            self._streams = _own_streams(self._device)
            ended = False
            while (job := self._queue.get(ended=ended)) is not None:
                self._run(job)
                ended = True
                del job  # its tensors must not live on while this thread waits for the next one

    def _run(self, job: Job) -> None:
        inference = job.inference
        if inference.lost is None:
            try:
                if self._streams is not None:
                    sms = inference.task.sms  # streams on a share have no priority
                    self._streams.enter((sms, 0 if sms else self._stream_priority(inference.priority)))
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


def _own_streams(device: torch.device) -> Streams[tuple[int, int], torch.cuda.Stream] | None:
    """By SMs and priority."""
    if device.type != "cuda":
        return None
    torch.cuda.set_device(device)
    return Streams(lambda kind: make_stream(device, *kind), torch.cuda.set_stream)
