"""One frame on its way through one DNN, and the jobs it is made of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DnnTask, DropReason, Tensors


@dataclass(eq=False)
class Inference:
    """The state that travels with a frame from job to job; exactly one thread holds it at a time.

    carried: what the last job left for the next one, in the end the raw outputs on the CPU.
    ready: CUDA event after which `carried` is valid, at first that of the DNN's frame before: stages may use the same
    memory for every frame. None on the CPU.
    stream: CUDA stream of the job that was launched last. spans: CUDA events around each job, read once the frame is
    through.
    lost: why there will be no result; set by whoever notices first. device_failed: because the GPU failed.
    """

    task: DnnTask
    frame: Frame
    priority: int
    deadline_ns: int | None
    started_ns: int
    done: Callable[[Inference], None]
    carried: Tensors = ()
    ready: torch.cuda.Event | None = None
    stream: torch.cuda.Stream | None = None
    spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)
    pre_ns: int = 0
    queue_ns: int = 0
    host_ns: int = 0
    lost: tuple[DropReason, str] | None = None
    device_failed: bool = False

    @property
    def due_ns(self) -> int | None:
        """When its result is due on the engine's clock."""
        return None if self.deadline_ns is None else self.frame.received_ns + self.deadline_ns

    def compute_ns(self) -> int:
        """Time its layers ran: GPU time where they ran on one (the outputs must have arrived), else host time."""
        if not self.spans:
            return self.host_ns
        return int(sum(begin.elapsed_time(end) for begin, end in self.spans) * 1e6)

    def to_host(self) -> None:
        """Wait until the outputs are on the CPU; other threads run on meanwhile."""
        if self.ready is not None:
            self.ready.synchronize()


@dataclass(eq=False)
class Job:
    """A run of consecutive hidden layers of one frame: what workers take from the shared queue.

    direct: it is run right behind the job before it of the same frame, by the same worker.
    """

    inference: Inference
    index: int
    queued_ns: int = 0
    direct: bool = False

    @property
    def is_last(self) -> bool:
        return self.index == len(self.inference.task.stages) - 1

    def run(self, device: torch.device, now: Callable[[], int] = time.perf_counter_ns) -> None:
        """Run on the calling thread's current stream; leaves the carried tensors in the inference.

        On CUDA this only launches: the predecessor's event is waited for on the GPU, and the event of this job is left
        for the successor.
        """
        inference = self.inference
        if device.type == "cuda":
            self._launch(device, now)
            return
        begin = now()
        if self.index == 0:
            inference.carried = self._inputs(device)
            inference.pre_ns = now() - begin
            begin = now()
        inference.carried = inference.task.stages[self.index](inference.carried)
        inference.host_ns += now() - begin

    def _launch(self, device: torch.device, now: Callable[[], int]) -> None:
        inference = self.inference
        stream = torch.cuda.current_stream(device)
        if self.index == 0:
            before = now()
            if inference.ready is not None and inference.task.in_place:
                stream.wait_event(inference.ready)
            inference.carried = self._inputs(device)
            inference.pre_ns = now() - before
        if inference.stream != stream:  # else the stream's order is enough
            if inference.ready is not None:
                stream.wait_event(inference.ready)
            if self.index:
                for tensor in inference.carried:  # made on the other stream: its memory must not be reused too early
                    tensor.record_stream(stream)
            inference.stream = stream
        # Launched right behind the job before, it begins when that one ends.
        begin = inference.spans[-1][1] if self.direct and inference.spans else _recorded(stream)
        inference.carried = inference.task.stages[self.index](inference.carried)
        if self.is_last:
            end = _recorded(stream)
            inference.carried = tuple(_to_pinned(tensor) for tensor in inference.carried)
            inference.ready = _recorded(stream)
        else:
            end = inference.ready = _recorded(stream)
        inference.spans.append((begin, end))

    def _inputs(self, device: torch.device) -> Tensors:
        return self.inference.task.preprocess(self.inference.frame.tensor(device))


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def _to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
