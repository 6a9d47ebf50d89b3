"""The thread of one DNN: starts inferences and publishes their results."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from multi_dnn_ros.engine.batch_delay import BatchDelay
from multi_dnn_ros.engine.dnn_frames import DnnFrames, FailureLimits
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.inference import DropCause, Inference, Item
from multi_dnn_ros.engine.observer import Observer
from multi_dnn_ros.engine.reports import Callbacks, Failure, call_and_log_errors
from multi_dnn_ros.engine.statistics import DnnCameraStatistics
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason

log = logging.getLogger(__name__)


class Runner(Protocol):
    """How inferences run on a device. All methods are called in the threads of the DNNs, and must not raise.

    ahead: inferences of a DNN that may have been started before the oldest of them is finished. If it is 1, `start`
    returns at the end of the inference.
    """

    ahead: int

    def enter_thread(self) -> None:
        """Called once by each DNN's thread."""

    def start(self, inference: Inference) -> None:
        """Start the inference. An error is left in its `drop_cause`."""

    def wait(self, inference: Inference) -> None:
        """Wait for the end of a started inference; its outputs are then in `rows`. An error is left in `drop_cause`."""

    def specialize(self, inference: Inference) -> None:
        """Optimize preprocessing for the image sizes of a finished inference."""

    def forget(self, dnn: str) -> None:
        """The thread of a DNN ends with an error."""


class DnnThread(threading.Thread):
    """The DNN model thread of the paper (Kim, Kim, Kim 2022).

    One lock guards all shared state. Callbacks and decoding run without the lock, so a slow receiver delays this DNN
    only.

    observer: its methods are called before and after decoding.
    """

    def __init__(
        self,
        task: DnnTask,
        runner: Runner,
        limits: FailureLimits,
        callbacks: Callbacks,
        clock: Callable[[], int],
        observer: Observer,
    ) -> None:
        super().__init__(name=f"dnn-{task.name}", daemon=True)
        self.task = task
        self._runner = runner
        self._observer = observer
        self._callbacks = callbacks
        self._clock = clock
        self._lock = threading.RLock()  # lock the RLock directly; via the Condition it is 10x slower
        self._wake = threading.Condition(self._lock)  # this thread waits here
        # Waited on by submit() for an empty mailbox and by wait_idle() for the end of all work.
        self._idle_or_room = threading.Condition(self._lock)
        self._frames = DnnFrames(task.name, task.cameras, limits, clock)
        self._batch_delay = BatchDelay(task.max_batch, task.batch_delay_ns, clock)
        self._in_flight: deque[Inference] = deque()  # used by this thread only
        self._closed = False

    # -- called from other threads

    def offer(self, frame: Frame) -> None:
        """Store the frame; never blocks. The frame it replaces is dropped."""
        with self._lock:
            drop = self._put_frame(frame)
        if drop is not None:
            self._report([drop])

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
            self._wake.notify()
            self._idle_or_room.notify_all()
        self._report(drops)

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
        self._runner.forget(self.task.name)
        with self._lock:
            drops, failure = self._frames.thread_ended(message)
            self._idle_or_room.notify_all()
        self._report(drops, failure)

    def _serve(self) -> None:
        self._runner.enter_thread()
        while True:
            with self._lock:
                while not (starts := self._can_start()) and not self._in_flight:
                    self._record_results()
                    if self._is_finished():
                        return
                    self._wake.wait(self._batch_delay.remaining_s())
            if starts:
                self._start()
            if (self._in_flight and len(self._in_flight) == self._runner.ahead) or not starts:
                self._finish(self._in_flight.popleft())

    def _start(self) -> None:
        """Start an inference of the waiting frames."""
        with self._lock:
            inference, too_old = self._take()
        self._report(too_old)
        if inference is not None:
            self._runner.start(inference)
            self._in_flight.append(inference)

    def _can_start(self) -> bool:
        waiting = self._frames.waiting
        if not waiting or len(self._in_flight) >= self._runner.ahead:
            self._batch_delay.reset()
            return False
        if self._in_flight:  # the device works: a batch that is not full can still grow
            return waiting >= self.task.max_batch
        return self._closed or self._batch_delay.should_start(waiting)

    def _is_finished(self) -> bool:
        return self._closed and not self._frames.in_progress and not self._frames.waiting

    def _put_frame(self, frame: Frame) -> Drop | None:
        """Store the frame. Returns the drop of the frame that it replaces, or its own if it is refused."""
        drop = self._frames.put(frame, closed=self._closed)
        if drop is None or drop.frame is not frame:
            self._wake.notify()
        return drop

    def _take(self) -> tuple[Inference | None, list[Drop]]:
        """Returns the next inference, and the drops of the frames that exceeded the maximum age.

        The inference is None if all waiting frames were too old.
        """
        now, task = self._clock(), self.task
        items, too_old = self._frames.take(task, now)
        self._batch_delay.reset()
        self._idle_or_room.notify_all()  # submit() may wait for an empty mailbox
        return Inference(task, tuple(items), task.priority, task.deadline_ns, now) if items else None, too_old

    def _finish(self, inference: Inference) -> None:
        """Wait for the outputs, and decode and publish them, or record the drops."""
        with self._lock:
            self._record_results()
        begin = self._clock()
        self._runner.wait(inference)
        if self._runner.ahead > 1:  # the device then works while these results are decoded
            with self._lock:
                starts = self._can_start()
            if starts:
                self._start()
        row = 0
        for item in inference.items:
            if item.drop_cause is not None:
                self._record_drops([item], item.drop_cause)
            elif inference.drop_cause is None:
                if row:
                    begin = self._clock()
                self._publish(inference, item, row, begin)
                row += 1
        inference.rows = []
        if inference.drop_cause is not None:
            rest = [item for item in inference.items if item.drop_cause is None]
            self._record_drops(rest, inference.drop_cause)
        if not self._closed:
            self._runner.specialize(inference)

    def _publish(self, inference: Inference, item: Item, row: int, begin_ns: int) -> None:
        self._observer.began(self.task.name)
        result = inference.decode(item, row, begin_ns, self._clock)
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
