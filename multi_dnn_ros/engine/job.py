"""One inference of a DNN, the frames that it is made of, and the jobs that it is cut into."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.cuda_graph import together
from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.engine.events import EventPool
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DnnTask, DropReason

Loss = tuple[DropReason, str]


@dataclass(eq=False)
class Item:
    """One frame of an inference. lost: why this one, and not the others of the batch, will have no result."""

    frame: Frame
    lost: Loss | None = None


@dataclass(eq=False)
class Inference:
    """The state that travels from job to job; exactly one thread holds it at a time.

    items: a frame, or one each of several cameras. stages: of the first job on, those for as many images as there are;
    batch: how many these take. carried: what the last job left for the next one, in the end the raw outputs on the CPU.
    ready: CUDA event after which `carried` is valid, at first that of the DNN's inference before: stages may use the
    same memory for every one. None on the CPU.
    stream: CUDA stream of the job that was launched last. events: where CUDA events come from; spans: those around each
    job. compute_ns: time that the layers ran, on the GPU where they ran on one (known once the outputs have arrived),
    else on the host.
    lost: why there will be no result of any item; set by the first thread that finds a cause. observed: an observer was
    told that it began, and will be told that it ended.
    """

    task: DnnTask
    items: tuple[Item, ...]
    priority: int
    deadline_ns: int | None
    started_ns: int
    done: Callable[[Inference], None]
    carried: Tensors = ()
    ready: torch.cuda.Event | None = None
    stream: torch.cuda.Stream | None = None
    events: EventPool = field(default_factory=EventPool)
    spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)
    pre_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    lost: Loss | None = None
    batch: int = 1
    observed: bool = False
    stages: tuple[Stage, ...] = field(init=False)
    _rows: list[Tensors] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.stages = self.task.stages

    @property
    def received_ns(self) -> int:
        """When its oldest frame arrived, on the engine's clock."""
        return min(item.frame.received_ns for item in self.items)

    @property
    def due_ns(self) -> int | None:
        """When its first result is due on the engine's clock."""
        return None if self.deadline_ns is None else self.received_ns + self.deadline_ns

    def to_host(self) -> None:
        """Wait until the outputs are on the CPU; other threads run on meanwhile."""
        if self.batch > 1:  # all at once, to cut them off one by one takes several times as long; and before the wait
            self._rows = list(zip(*(tensor.split(1) for tensor in self.carried), strict=True))
        if self.ready is not None:
            self.ready.synchronize()
            self.compute_ns = int(sum(begin.elapsed_time(end) for begin, end in self.spans) * 1e6)
            self.events.release({event for span in self.spans for event in span if event is not self.ready})
            self.spans.clear()

    def outputs(self, row: int) -> Tensors:
        """The raw outputs of the item that is number `row` of those that were not lost."""
        return self._rows[row] if self.batch > 1 else self.carried


def loss_from_error(error: BaseException, job: int) -> Loss:
    """What the frames are lost by when a job raises."""
    return DropReason.DNN_ERROR, f"job {job}: {type(error).__name__}: {error}"


@dataclass(eq=False)
class Job:
    """A run of consecutive hidden layers of one inference: what workers take from the shared queue.

    index: of the job; once it ran, of the last that ran with it.
    """

    inference: Inference
    index: int
    queued_ns: int = 0

    @property
    def is_last(self) -> bool:
        return self.index == len(self.inference.stages) - 1

    def successor(self) -> Job:
        """The frame's next job, in the place that this one had in the queue."""
        return Job(self.inference, self.index + 1, self.queued_ns)

    def run(
        self,
        device: torch.device,
        stream: torch.cuda.Stream | None = None,
        may_continue: Callable[[Job], bool] = lambda job: False,
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Run; leaves the carried tensors in the inference.

        may_continue: whether the inference's next job, which it is given, may run at once. On a CPU all jobs are one
        call then, where the task has them as one.

        On CUDA this only launches, on `stream`, which is the calling thread's current one: what came before is waited
        for on the GPU, and an event is left for what comes after. Alternating with equal jobs between two
        launches would gain nothing there, so the inference's next jobs are launched with this one for as long as
        may_continue allows; all of them in one launch where the task has single_launch.
        """
        inference = self.inference
        if stream is not None:
            self._launch(device, stream, may_continue, now)
            return
        begin = now()
        if self.index == 0:
            inference.carried = self._inputs(device)
            inference.pre_ns = now() - begin
            begin = now()
        whole = inference.task.single_launch.get(inference.batch) if self.index == 0 else None
        if whole is not None and not self.is_last and may_continue(self.successor()):
            inference.carried = whole(inference.carried)
            self.index = len(inference.stages) - 1
        else:
            inference.carried = inference.stages[self.index](inference.carried)
        inference.compute_ns += now() - begin

    def _launch(
        self,
        device: torch.device,
        stream: torch.cuda.Stream,
        may_continue: Callable[[Job], bool],
        now: Callable[[], int],
    ) -> None:
        inference = self.inference
        record = inference.events.record
        in_place = self.index == 0 and (inference.task.in_place or len(inference.items) > 1)
        if self.index == 0:
            before = now()
            if in_place and inference.ready is not None:
                stream.wait_event(inference.ready)
            inference.carried = self._inputs(device)
            inference.pre_ns = now() - before
        if inference.stream is not stream:  # else the stream's order is enough
            if inference.ready is not None and not in_place:  # else it waits already
                stream.wait_event(inference.ready)
            if self.index:
                for tensor in inference.carried:  # made on the other stream: its memory must not be reused too early
                    tensor.record_stream(stream)
            inference.stream = stream
        begin = record(stream)
        fused = inference.task.single_launch.get(inference.batch) if self.index == 0 else None
        if fused is not None and may_continue(self.successor()):
            inference.carried = fused(inference.carried)
            self.index = len(inference.stages) - 1
        else:
            inference.carried = inference.stages[self.index](inference.carried)
            while not self.is_last and may_continue(self.successor()):
                self.index += 1
                inference.carried = inference.stages[self.index](inference.carried)
        if self.is_last:
            if inference.task.condense is not None:
                inference.carried = inference.task.condense(inference.carried)
            end = record(stream)
            if inference.batch > 1:  # not what it was filled up with
                rows = sum(item.lost is None for item in inference.items)
                inference.carried = tuple(tensor[:rows] for tensor in inference.carried)
            inference.carried = tuple(_to_pinned(tensor) for tensor in inference.carried)
            inference.ready = record(stream)
        else:
            end = inference.ready = record(stream)
        inference.spans.append((begin, end))

    def _inputs(self, device: torch.device) -> Tensors:
        preprocess, items = self.inference.task.preprocess, self.inference.items
        if len(items) == 1:
            return preprocess(items[0].frame.tensor(device))
        images: list[Tensors] = []
        for item in items:
            try:
                images.append(preprocess(item.frame.tensor(device)))
            except Exception as error:
                if is_device_failure(error):
                    raise
                item.lost = loss_from_error(error, self.index)
        if not images:
            raise ValueError("every image of the batch is lost")
        return self._together(images)

    def _together(self, images: list[Tensors]) -> Tensors:
        """One input of all, filled up to a size that there are stages for."""
        inference = self.inference
        inference.batch, inference.stages = inference.task.stages_for(len(images))
        if inference.batch == 1:
            return images[0]
        images += [images[-1]] * (inference.batch - len(images))
        return together(images, inference.stages[0])


def _to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
