"""The thread of one DNN: starts inferences, decodes their outputs, and keeps statistics."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from multi_dnn_ros.engine.batch_delay import BatchDelay
from multi_dnn_ros.engine.events import EventPool
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.health import Health
from multi_dnn_ros.engine.job import Inference, Item, Job, Loss
from multi_dnn_ros.engine.mailbox import Mailboxes
from multi_dnn_ros.engine.observer import NullObserver, Observer
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.engine.reports import Callbacks, Failure, guarded
from multi_dnn_ros.engine.results import await_outputs, make_result
from multi_dnn_ros.engine.runner import Runner
from multi_dnn_ros.engine.specializer import Specializer
from multi_dnn_ros.engine.statistics import StreamRecorder, StreamStatistics
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason, Timing

log = logging.getLogger(__name__)

#: Drops caused by the DNN itself; too many consecutive ones disable it.
FAILURES = (DropReason.DNN_ERROR, DropReason.BAD_OUTPUT)


@dataclass(frozen=True)
class Limits:
    """max_failures: consecutive failures that disable the DNN. window_ns: length of the statistics window."""

    max_failures: int = 5
    window_ns: int = 10_000_000_000


class DnnThread(threading.Thread):
    """The DNN model thread of the paper (Kim, Kim, Kim 2022).

    One lock guards all shared state. Callbacks and decoding run without the lock, so a slow receiver delays this DNN
    only.

    runner: used to launch an inference directly if no other job is queued or running; None: workers run all jobs.
    observer: told when outputs have arrived, and of their decoding.
    """

    def __init__(
        self,
        task: DnnTask,
        queue: JobQueue,
        limits: Limits,
        callbacks: Callbacks,
        clock: Callable[[], int],
        runner: Runner | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(name=f"dnn-{task.name}", daemon=True)
        self.task = task
        self._queue = queue
        self._limits = limits
        self._runner = runner
        self._observer = observer or NullObserver()
        self._callbacks = callbacks
        self._clock = clock
        self._lock = threading.RLock()  # lock the RLock directly; via the Condition it is 10x slower
        self._wake = threading.Condition(self._lock)  # this thread waits here
        # Waited on by submit() for a free slot and by wait_idle() for the end of all work.
        self._idle_or_room = threading.Condition(self._lock)
        self._mail = Mailboxes(task.cameras)
        self._batch_delay = BatchDelay(task.max_batch, task.batch_delay_ns, clock)
        self._recorders = {camera: StreamRecorder(limits.window_ns) for camera in task.cameras}
        self._running = 0  # inferences queued or running
        self._finished: deque[Inference] = deque()
        self._open: set[Item] = set()  # started, and not yet recorded as published or dropped
        # Published results that _record_results has not recorded yet.
        self._unrecorded: deque[tuple[Item, Timing, int, int | None]] = deque()
        self._events = EventPool()
        self._ready: torch.cuda.Event | None = None  # of the previous inference
        self._health = Health(limits.max_failures, clock)
        self._specializer = Specializer(queue)
        self._closed = False

    # -- called from other threads

    def offer(self, frame: Frame) -> None:
        """Store the frame; never blocks. The frame it replaces is dropped."""
        with self._lock:
            lost, reason, message = self._put_frame(frame)
        if lost is not None:
            self._report_drops(reason, message, lost)

    def submit(self, frame: Frame, timeout_s: float | None) -> bool:
        """Wait until the camera's slot is free, then offer the frame. False on timeout."""
        with self._lock:
            if not self._idle_or_room.wait_for(
                lambda: self._closed or self._health.disabled is not None or self._mail.is_free(frame.camera),
                timeout_s,
            ):
                return False
            lost, reason, message = self._put_frame(frame)
        if lost is not None:
            self._report_drops(reason, message, lost)
        return True

    def update(self, priority: int | None, deadline_ns: int | None, max_age_ns: int | None) -> None:
        """Change the values that are not None, for inferences that start from now on; 0 means no deadline or no maximum
        age.
        """
        with self._lock:
            if priority is not None:
                self.task = replace(self.task, priority=priority)
            if deadline_ns is not None:
                self.task = replace(self.task, deadline_ns=deadline_ns or None)
            if max_age_ns is not None:
                self.task = replace(self.task, max_age_ns=max_age_ns or None)

    def done(self, inference: Inference) -> None:
        """The inference has left queue and workers: its last job has run, or it was lost."""
        with self._lock:
            self._running -= 1
            self._ready = inference.ready
            if inference.items[0] in self._open:  # either all items are open, or abandon() dropped them all
                self._finished.append(inference)
            self._wake.notify()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no frame is waiting or in progress. False on timeout."""
        with self._lock:
            return self._idle_or_room.wait_for(lambda: not self._open and not len(self._mail), timeout_s)

    def close(self, *, drop_waiting: bool) -> None:
        """Accept no more frames, and end once those in progress are finished."""
        with self._lock:
            self._closed = True
            waiting = self._mail.clear() if drop_waiting else []
            for frame in waiting:
                self._recorders[frame.camera].dropped[DropReason.SHUTDOWN] += 1
            self._wake.notify()
            self._idle_or_room.notify_all()
        self._report_drops(DropReason.SHUTDOWN, "the engine stopped while the frame was waiting", *waiting)

    def abandon(self) -> None:
        """Drop the frames in progress; later results for them are ignored."""
        with self._lock:
            frames = self._drop_open(DropReason.SHUTDOWN)
            self._wake.notify()
            self._idle_or_room.notify_all()
        self._report_drops(DropReason.SHUTDOWN, "still running after the engine's stop timeout", *frames)

    def statistics(self) -> tuple[dict[str, StreamStatistics], str | None]:
        """Statistics per camera, and the reason if the DNN is disabled."""
        now = self._clock()
        with self._lock:
            self._record_results()
            recorders = {camera: recorder.copy() for camera, recorder in self._recorders.items()}
            disabled = self._health.disabled
        return {camera: recorder.snapshot(now) for camera, recorder in recorders.items()}, disabled

    # -- the thread

    def run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # an error of the engine itself; the DNN must not fail in silence
            log.exception("the thread of DNN %s ended", self.task.name)
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, message: str) -> None:
        """Disable the DNN, and drop the frames that are waiting or in progress."""
        with self._lock:
            self._health.thread_ended(message)
            frames = self._drop_open(DropReason.DNN_ERROR)
            failure, waiting = self._after_failure(message)
        self._report_drops(DropReason.DNN_ERROR, message, *frames)
        self._report_drops(DropReason.DISABLED, message, *waiting)
        guarded(self._callbacks.on_failure, failure)

    def _drop_open(self, reason: DropReason) -> list[Frame]:
        """Count the frames in progress as dropped. The caller holds the lock, and reports them after releasing it."""
        self._record_results()
        frames = [item.frame for item in self._open]
        self._open = set()
        self._finished.clear()
        for frame in frames:
            self._recorders[frame.camera].dropped[reason] += 1
        return frames

    def _serve(self) -> None:
        if self._runner is not None:
            self._runner.enter_device()
        while True:
            with self._lock:
                while not (starts := self._can_start()) and not self._finished:
                    if not self._running:
                        self._record_results()
                    if self._is_finished():
                        break
                    self._wake.wait(self._batch_delay.remaining_s())
                finished = self._finished.popleft() if self._finished else None
                inference, late = self._start_inference() if starts else (None, [])
                if finished is None and inference is None and not late:
                    return
            # Start the next frames first: the device then works while these results are decoded.
            if inference is not None:
                self._enqueue(inference, may_launch=finished is None)
            self._report_drops(DropReason.TOO_OLD, "waited longer than the maximum age", *late)
            if finished is not None:
                self._finish(finished)
                if not self._closed:
                    self._specializer.specialize(self.task, finished)
            # Keep no reference to a frame while this thread waits.
            finished = inference = None
            late = []

    def _enqueue(self, inference: Inference, *, may_launch: bool) -> None:
        """Queue the first job. With a runner, run what can be run directly, and queue the rest.

        may_launch: no finished inference is waiting for this thread.
        """
        job = Job(inference, 0)
        rest = self._runner.try_run(job) if self._runner is not None and may_launch else job
        if rest is not None and not self._queue.put(rest):
            inference.lost = (DropReason.SHUTDOWN, "the engine stopped before the frame's next job")
            self.done(inference)

    def _can_start(self) -> bool:
        if not len(self._mail) or self._running:
            self._batch_delay.reset()
            return False
        return self._closed or self._batch_delay.should_start(len(self._mail))

    def _is_finished(self) -> bool:
        return self._closed and not self._open and not len(self._mail)

    def _put_frame(self, frame: Frame) -> tuple[Frame | None, DropReason, str]:
        """Store the frame in its slot; return the frame dropped thereby, already counted, its reason and message."""
        recorder = self._recorders[frame.camera]
        recorder.offered += 1
        if self._closed:
            lost, reason, message = frame, DropReason.SHUTDOWN, "the engine is stopping"
        elif self._health.disabled is not None:
            lost, reason, message = frame, DropReason.DISABLED, self._health.disabled
        else:
            old = self._mail.put(frame)
            self._wake.notify()
            if old is None:
                return None, DropReason.OVERWRITTEN, ""
            lost, reason, message = old, DropReason.OVERWRITTEN, "a newer frame came first"
        recorder.dropped[reason] += 1
        return lost, reason, message

    def _start_inference(self) -> tuple[Inference | None, list[Frame]]:
        """Take the frames of the next inference from the mailboxes. Also returns those that exceeded the maximum age,
        already counted.

        No inference if no other frame is left.
        """
        now, task = self._clock(), self.task
        most = task.max_batch
        items: list[Item] = []
        late: list[Frame] = []
        while len(items) < most and (frame := self._mail.take()) is not None:
            if task.max_age_ns is not None and now - frame.received_ns > task.max_age_ns:
                self._recorders[frame.camera].dropped[DropReason.TOO_OLD] += 1
                late.append(frame)
            else:
                items.append(Item(frame))
        self._batch_delay.reset()
        self._idle_or_room.notify_all()  # submit() may wait for a slot
        if not items:
            return None, late
        self._open.update(items)
        self._running += 1
        inference = Inference(
            task,
            tuple(items),
            task.priority,
            task.deadline_ns,
            now,
            self.done,
            ready=self._ready,
            events=self._events,
        )
        return inference, late

    def _finish(self, inference: Inference) -> None:
        """Decode and publish the outputs, or record the loss."""
        with self._lock:
            self._record_results()
        begin = self._clock()
        await_outputs(inference, self._observer)
        row = 0
        for item in inference.items:
            if item.lost is not None:
                self._record_loss([item], item.lost)
            elif inference.lost is None:
                if row:
                    begin = self._clock()
                self._publish(inference, item, row, begin)
                row += 1
        inference.carried = ()
        if inference.lost is not None:
            rest = [item for item in inference.items if item.lost is None]
            self._record_loss(rest, inference.lost)

    def _publish(self, inference: Inference, item: Item, row: int, begin_ns: int) -> None:
        self._observer.began(self.task.name)
        result = make_result(inference, item, row, begin_ns, self._clock)
        self._observer.ended(self.task.name)
        if item not in self._open:  # abandoned meanwhile; checked again under the lock when recording
            return
        if result is not None:
            try:
                self._callbacks.on_result(result)
            except Exception as error:
                item.lost = (DropReason.PUBLISH_ERROR, f"{type(error).__name__}: {error}")
        if result is None or item.lost is not None:
            assert item.lost is not None
            self._record_loss([item], item.lost)
        else:
            self._unrecorded.append((item, result.timing, self._clock(), inference.deadline_ns))

    def _record_results(self) -> None:
        """Record published results in the statistics; the caller holds the lock.

        Deferred: the receiver of the last result may have offered the frames of the next inference, which should start
        first.
        """
        if not self._unrecorded:
            return
        while self._unrecorded:
            item, timing, published_ns, deadline_ns = self._unrecorded.popleft()
            if item in self._open:  # otherwise abandoned before it was recorded
                self._open.discard(item)
                self._recorders[item.frame.camera].publish(timing, published_ns, deadline_ns)
                self._health.succeeded()
        self._idle_or_room.notify_all()

    def _record_loss(self, items: Sequence[Item], loss: Loss) -> None:
        """Record items that were lost together. If caused by the DNN, they count as one failure."""
        reason, message = loss
        failure: Failure | None = None
        waiting: list[Frame] = []
        with self._lock:
            self._record_results()
            items = [item for item in items if item in self._open]
            if not items:
                return
            for item in items:
                self._open.discard(item)
                self._recorders[item.frame.camera].dropped[reason] += 1
            if reason in FAILURES:
                self._health.failed(message)
                failure, waiting = self._after_failure(message)
            self._idle_or_room.notify_all()
        self._report_drops(reason, message, *(item.frame for item in items))
        if failure is not None:
            self._report_drops(DropReason.DISABLED, failure.message, *waiting)
            guarded(self._callbacks.on_failure, failure)

    def _after_failure(self, message: str) -> tuple[Failure, list[Frame]]:
        """The report of a failure that `_health` has counted, and the waiting frames that it drops, already counted."""
        disabled = self._health.disabled
        waiting = self._mail.clear() if disabled is not None else []
        for frame in waiting:
            self._recorders[frame.camera].dropped[DropReason.DISABLED] += 1
        self._idle_or_room.notify_all()
        health = self._health
        failure = Failure(
            self.task.name, message, health.failures, disabled is not None, disabled or "", health.retry_s()
        )
        return failure, waiting

    def _report_drops(self, reason: DropReason, message: str, *frames: Frame) -> None:
        for frame in frames:
            guarded(self._callbacks.on_drop, Drop(self.task.name, frame, reason, message))
