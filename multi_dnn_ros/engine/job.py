"""One inference of a DNN, its frames and its jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.device_errors import is_device_failure
from multi_dnn_ros.backends.host_copies import HostCopies
from multi_dnn_ros.backends.static_stages import stack_inputs
from multi_dnn_ros.engine.events import EventPool
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.task import DnnTask, DropReason

#: Why a frame has no result: the reason, and a message that states the cause.
DropCause = tuple[DropReason, str]


@dataclass(eq=False)
class Item:
    """One frame of an inference. drop_cause: why this frame, but not the rest of the batch, will have no result."""

    frame: Frame
    drop_cause: DropCause | None = None


@dataclass(eq=False)
class Inference:
    """The state passed from job to job; exactly one thread owns it at a time.

    items: one frame, or one per camera.
    stages: the stages for `batch`, the batch size including padding; the first job sets both for several images.
    carried: the tensors between two jobs; finally the raw outputs on the CPU.
    ready: CUDA event after which `carried` is valid. Initially the event of the DNN's previous inference, because
    the stages may use the same memory for every inference. None on a CPU.
    stream: CUDA stream of the most recently launched job. Initially that of the DNN's previous inference.
    events: source of CUDA events. spans: the pair of events around each job.
    host_copies: makes the copies of the outputs on the CPU.
    compute_ns: time in the layers; on a GPU measured there, and known once the outputs have arrived.
    drop_cause: why no item will have a result; set by the first thread that finds a cause.
    observed: Observer.began was called for the inference, so Observer.ended must be called, too.
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
    host_copies: HostCopies = field(default_factory=HostCopies)
    pre_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    drop_cause: DropCause | None = None
    batch: int = 1
    observed: bool = False
    stages: tuple[Stage, ...] = field(init=False)
    _rows: list[Tensors] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.stages = self.task.stages

    @property
    def received_ns(self) -> int:
        """Arrival of the oldest frame, on the engine's clock."""
        return min(item.frame.received_ns for item in self.items)

    @property
    def due_ns(self) -> int | None:
        """Deadline of the first result, on the engine's clock."""
        return None if self.deadline_ns is None else self.received_ns + self.deadline_ns

    def to_host(self) -> None:
        """Wait until the outputs are on the CPU. Releases the GIL while waiting."""
        if self.batch > 1:  # one split is several times faster than slicing each row; done before the wait
            self._rows = list(zip(*(tensor.split(1) for tensor in self.carried), strict=True))
        if self.ready is not None:
            self.ready.synchronize()
            self.compute_ns = int(sum(begin.elapsed_time(end) for begin, end in self.spans) * 1e6)
            self.events.release({event for span in self.spans for event in span if event is not self.ready})
            self.spans.clear()

    def outputs(self, row: int) -> Tensors:
        """The raw outputs of item number `row`; dropped items are not counted."""
        return self._rows[row] if self.batch > 1 else self.carried


def drop_cause_from_error(error: BaseException, job: int) -> DropCause:
    """The drop cause of an inference whose job raised `error`. job: index of the job; the message counts from 1."""
    return DropReason.DNN_ERROR, f"job {job + 1}: {type(error).__name__}: {error}"


@dataclass(eq=False)
class Job:
    """A run of consecutive layers of one inference: the unit of the shared queue.

    index: index of the stage; after `run`, index of the last stage that it ran.
    """

    inference: Inference
    index: int
    queued_ns: int = 0

    @property
    def is_last(self) -> bool:
        return self.index == len(self.inference.stages) - 1

    def successor(self) -> Job:
        """The inference's next job, with the `queued_ns` of this one."""
        return Job(self.inference, self.index + 1, self.queued_ns)

    def run(
        self,
        device: torch.device,
        stream: torch.cuda.Stream | None = None,
        may_continue: Callable[[Job], bool] = lambda job: False,
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Run the job; leaves the carried tensors in the inference.

        may_continue: called with the inference's next job; returns whether it may run immediately. On a CPU all jobs
        are then one call, if the task has single_launch.

        On CUDA this only launches, on `stream`, which is the calling thread's current stream. The GPU itself waits for
        earlier work, and an event is recorded for later work. Alternating with equal jobs between two launches would
        gain nothing, so the next jobs are launched, too, while may_continue allows it; all of them are one launch if
        the task has single_launch.
        """
        inference = self.inference
        if stream is not None:
            try:
                self._launch(device, stream, may_continue, now)
            except BaseException:
                # What it has launched may still use the memory of the stages and of the outputs' copies: the DNN's next
                # inference, perhaps on another stream, has to wait for it, too.
                with contextlib.suppress(RuntimeError):  # the device has failed
                    inference.ready = inference.events.record(stream)
                raise
            return
        begin = now()
        if self.index == 0:
            inference.carried = self._inputs(device)
            inference.pre_ns = now() - begin
            begin = now()
        single = inference.task.single_launch.get(inference.batch) if self.index == 0 else None
        if single is not None and not self.is_last and may_continue(self.successor()):
            inference.carried = single(inference.carried)
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
        if inference.stream is not stream:  # on the same stream, order suffices
            if inference.ready is not None:
                stream.wait_event(inference.ready)
            for tensor in inference.carried:  # allocated on the other stream: prevent early reuse of its memory
                tensor.record_stream(stream)
            inference.stream = stream
        if self.index == 0:
            before = now()
            inference.carried = self._inputs(device)
            inference.pre_ns = now() - before
        begin = record(stream)
        single = inference.task.single_launch.get(inference.batch) if self.index == 0 else None
        if single is not None and may_continue(self.successor()):
            inference.carried = single(inference.carried)
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
            if inference.batch > 1:  # without the padding
                rows = sum(item.drop_cause is None for item in inference.items)
                inference.carried = tuple(tensor[:rows] for tensor in inference.carried)
            inference.carried = tuple(map(inference.host_copies.start, inference.carried))
            inference.ready = record(stream)
        else:
            end = inference.ready = record(stream)
        inference.spans.append((begin, end))

    def _inputs(self, device: torch.device) -> Tensors:
        items = self.inference.items
        if len(items) == 1:
            return self._input(items[0].frame, device)
        images: list[Tensors] = []
        for item in items:
            try:
                images.append(self._input(item.frame, device))
            except Exception as error:
                if is_device_failure(error):
                    raise
                item.drop_cause = drop_cause_from_error(error, self.index)
        if not images:
            raise ValueError("no image of the batch could be preprocessed")
        return self._stack(images)

    def _input(self, frame: Frame, device: torch.device) -> Tensors:
        task = self.inference.task
        if task.input_key is None or device.type != "cpu":
            return task.preprocess(frame.tensor(device))
        return frame.inputs(task.input_key, lambda: task.preprocess(frame.tensor(device)))

    def _stack(self, images: list[Tensors]) -> Tensors:
        """Concatenate the images, padded to the next available batch size."""
        inference = self.inference
        inference.batch, inference.stages = inference.task.stages_for(len(images))
        if inference.batch == 1:
            return images[0]
        images += [images[-1]] * (inference.batch - len(images))
        return stack_inputs(images, inference.stages[0])
