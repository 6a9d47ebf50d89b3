"""The thread of one DNN: starts inferences and publishes their results."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from multi_dnn_ros.backends.host_copies import HostCopies
from multi_dnn_ros.engine.batch_delay import BatchDelay
from multi_dnn_ros.engine.dnn_frames import DnnFrames, FailureLimits
from multi_dnn_ros.engine.events import EventPool
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.job import DropCause, Inference, Item, Job
from multi_dnn_ros.engine.observer import NullObserver, Observer
from multi_dnn_ros.engine.queue import JobQueue
from multi_dnn_ros.engine.reports import Callbacks, Failure, call_and_log_errors
from multi_dnn_ros.engine.results import await_outputs, make_result
from multi_dnn_ros.engine.runner import Runner
from multi_dnn_ros.engine.specializer import Specializer
from multi_dnn_ros.engine.statistics import DnnCameraStatistics
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason

log = logging.getLogger(__name__)


class DnnThread(threading.Thread):
    """The DNN model thread of the paper (Kim, Kim, Kim 2022).

    One lock guards all shared state. Callbacks and decoding run without the lock, so a slow receiver delays this DNN
    only.

    runner: used to run an inference directly, see :meth:`Runner.try_run`; None: workers run all jobs.
    observer: its methods are called when the outputs have arrived, and before and after decoding.
    """

    def __init__(
        self,
        task: DnnTask,
        queue: JobQueue,
        limits: FailureLimits,
        callbacks: Callbacks,
        clock: Callable[[], int],
        runner: Runner | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(name=f"dnn-{task.name}", daemon=True)
        self.task = task
        self._queue = queue
        self._runner = runner
        self._observer = observer or NullObserver()
        self._callbacks = callbacks
        self._clock = clock
        self._lock = threading.RLock()  # lock the RLock directly; via the Condition it is 10x slower
        self._wake = threading.Condition(self._lock)  # this thread waits here
        # Waited on by submit() for an empty mailbox and by wait_idle() for the end of all work.
        self._idle_or_room = threading.Condition(self._lock)
        self._frames = DnnFrames(task.name, task.cameras, limits, clock)
        self._batch_delay = BatchDelay(task.max_batch, task.batch_delay_ns, clock)
        self._running = 0  # inferences queued or running
        self._finished: deque[Inference] = deque()
        self._events = EventPool()
        self._host_copies = HostCopies()
        # `ready` and `stream` of the previous inference
        self._ready: torch.cuda.Event | None = None
        self._stream: torch.cuda.Stream | None = None
        self._specializer = Specializer(queue)
        self._closed = False

    # -- called from other threads

    def offer(self, frame: Frame) -> None:
        """Store the frame; never blocks. The frame it replaces is dropped."""
        with self._lock:
            drop = self._put_frame(frame)
        if drop is not None:
            self._report([drop])

    def refuse(self, frame: Frame, cause: DropCause) -> None:
        """Drop a frame that was not offered."""
        with self._lock:
            drops, failure = self._frames.refuse(frame, cause)
        self._report(drops, failure)

    def submit(self, frame: Frame, timeout_s: float | None) -> bool:
        """Wait until the camera's mailbox is empty, then offer the frame. False on timeout."""
        with self._lock:
            if not self._idle_or_room.wait_for(
                lambda: self._closed or self._frames.has_room(frame.camera),
                timeout_s,
            ):
                return False
            drop = self._put_frame(frame)
        if drop is not None:
            self._report([drop])
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
        """Receive an inference whose last job has run or that is dropped; no queue or worker refers to it any more."""
        with self._lock:
            self._running -= 1
            self._ready, self._stream = inference.ready, inference.stream
            if self._frames.is_in_progress(inference.items[0]):  # either all of its items are, or none
                self._finished.append(inference)
            self._wake.notify()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no frame is waiting or in progress. False on timeout."""
        frames = self._frames
        with self._lock:
            return self._idle_or_room.wait_for(lambda: not frames.in_progress and not frames.waiting, timeout_s)

    def close(self, *, drop_waiting: bool) -> None:
        """Accept no more frames, and end once those in progress are finished."""
        message = "the engine stopped while the frame was waiting"
        with self._lock:
            self._closed = True
            drops = self._frames.drop_waiting(DropReason.SHUTDOWN, message) if drop_waiting else []
            self._wake.notify()
            self._idle_or_room.notify_all()
        self._report(drops)

    def abandon(self) -> None:
        """Drop the frames in progress; later results for them are ignored."""
        with self._lock:
            drops = self._frames.drop_in_progress(DropReason.SHUTDOWN, "still running after the engine's stop timeout")
            self._finished.clear()
            self._wake.notify()
            self._idle_or_room.notify_all()
        self._report(drops)

    @property
    def has_waiting(self) -> bool:
        """Whether a frame waits for the end of the current inference. Read without the lock: may be out of date."""
        return self._frames.waiting > 0

    def statistics(self) -> tuple[dict[str, DnnCameraStatistics], str | None]:
        """Statistics per camera, and the reason if the DNN is disabled."""
        now = self._clock()
        with self._lock:
            self._record_results()
            recorders, disabled = self._frames.copy_recorders()
        return {camera: recorder.snapshot(now) for camera, recorder in recorders.items()}, disabled

    # -- the thread

    def run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # an error in the engine itself, which must be reported as well
            log.exception(
                "the thread of DNN %s ended with an error; the DNN is disabled, and its engine process is replaced "
                "(isolation: process)",
                self.task.name,
            )
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, message: str) -> None:
        """Disable the DNN, and drop the frames that are waiting or in progress."""
        with self._lock:
            drops, failure = self._frames.thread_ended(message)
            self._finished.clear()
            self._idle_or_room.notify_all()
        self._report(drops, failure)

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
                inference, too_old = self._start_inference() if starts else (None, [])
                if finished is None and inference is None and not too_old:
                    return
            # Start the next frames first: the device then works while these results are decoded.
            if inference is not None:
                self._enqueue(inference, may_launch=finished is None)
            self._report(too_old)
            if finished is not None:
                self._finish(finished)
                if not self._closed:
                    self._specializer.specialize(self.task, finished)
            # Drop the references, so that the frames' memory is freed while this thread waits.
            finished = inference = None
            too_old = []

    def _enqueue(self, inference: Inference, *, may_launch: bool) -> None:
        """Queue the first job. With a runner, run what can be run directly, and queue the rest.

        may_launch: whether this thread may run jobs, because no finished inference is waiting for it.
        """
        job = Job(inference, 0)
        rest = self._runner.try_run(job) if self._runner is not None and may_launch else job
        if rest is not None and not self._queue.put(rest):
            inference.drop_cause = (DropReason.SHUTDOWN, "the engine stopped before the frame's next job")
            self.done(inference)

    def _can_start(self) -> bool:
        if not self._frames.waiting or self._running:
            self._batch_delay.reset()
            return False
        return self._closed or self._batch_delay.should_start(self._frames.waiting)

    def _is_finished(self) -> bool:
        return self._closed and not self._frames.in_progress and not self._frames.waiting

    def _put_frame(self, frame: Frame) -> Drop | None:
        """Store the frame. Returns the drop of the frame that it replaces, or its own if it is refused."""
        drop = self._frames.put(frame, closed=self._closed)
        if drop is None or drop.frame is not frame:
            self._wake.notify()
        return drop

    def _start_inference(self) -> tuple[Inference | None, list[Drop]]:
        """Returns the next inference, and the drops of the frames that exceeded the maximum age.

        The inference is None if all waiting frames were too old.
        """
        now, task = self._clock(), self.task
        items, too_old = self._frames.take(task, now)
        self._batch_delay.reset()
        self._idle_or_room.notify_all()  # submit() may wait for an empty mailbox
        if not items:
            return None, too_old
        self._running += 1
        inference = Inference(
            task,
            tuple(items),
            task.priority,
            task.deadline_ns,
            now,
            self.done,
            ready=self._ready,
            stream=self._stream,
            events=self._events,
            host_copies=self._host_copies,
        )
        return inference, too_old

    def _finish(self, inference: Inference) -> None:
        """Decode and publish the outputs, or record the drops."""
        with self._lock:
            self._record_results()
        begin = self._clock()
        await_outputs(inference, self._observer)
        row = 0
        for item in inference.items:
            if item.drop_cause is not None:
                self._record_drops([item], item.drop_cause)
            elif inference.drop_cause is None:
                if row:
                    begin = self._clock()
                self._publish(inference, item, row, begin)
                row += 1
        inference.carried = ()
        if inference.drop_cause is not None:
            rest = [item for item in inference.items if item.drop_cause is None]
            self._record_drops(rest, inference.drop_cause)

    def _publish(self, inference: Inference, item: Item, row: int, begin_ns: int) -> None:
        self._observer.began(self.task.name)
        result = make_result(inference, item, row, begin_ns, self._clock)
        self._observer.ended(self.task.name)
        if not self._frames.is_in_progress(item):  # dropped by abandon(); checked again under the lock when recording
            return
        if result is not None:
            try:
                self._callbacks.on_result(result)
            except BaseException as error:  # a receiver that raises must not end the thread
                item.drop_cause = (DropReason.PUBLISH_ERROR, f"{type(error).__name__}: {error}")
        if result is None or item.drop_cause is not None:
            assert item.drop_cause is not None
            self._record_drops([item], item.drop_cause)
        else:
            self._frames.add_result(item, result.timing, self._clock(), inference.deadline_ns)

    def _record_results(self) -> None:
        """Record published results in the statistics; the caller holds the lock."""
        if self._frames.record_results():
            self._idle_or_room.notify_all()

    def _record_drops(self, items: Sequence[Item], cause: DropCause) -> None:
        """Drop items with a common cause. If the DNN caused it, they count as one failure."""
        with self._lock:
            drops, failure = self._frames.record_drops(items, cause)
            self._idle_or_room.notify_all()
        self._report(drops, failure)

    def _report(self, drops: Iterable[Drop], failure: Failure | None = None) -> None:
        for drop in drops:
            call_and_log_errors(self._callbacks.on_drop, drop)
        if failure is not None:
            call_and_log_errors(self._callbacks.on_failure, failure)
