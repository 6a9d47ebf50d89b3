"""The thread of one DNN: its waiting frames become inferences, and their outputs results."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from multi_dnn_ros.engine.batch_delay import BatchDelay
from multi_dnn_ros.engine.dnn_frames import DnnFrames
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.inference import DropCause, Inference, Item
from multi_dnn_ros.engine.observer import Observer
from multi_dnn_ros.engine.reports import Callbacks, Failure, call_and_log_errors
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason

log = logging.getLogger(__name__)


class DnnThread(threading.Thread):
    """The DNN model thread of the paper (Kim, Kim, Kim 2022).

    One lock guards all shared state. Callbacks and decoding run without the lock, so a slow receiver delays this DNN
    only.

    run: runs an inference to its end, in this thread; an error is left in its `drop_cause`. None: another thread calls
    `take` and `finished`, and `wake` is called when a frame waits. ahead: inferences that may have been taken and not
    yet finished. observer: its methods are called before and after decoding.
    """

    def __init__(
        self,
        task: DnnTask,
        max_failures: int,
        callbacks: Callbacks,
        clock: Callable[[], int],
        observer: Observer,
        *,
        run: Callable[[Inference], None] | None = None,
        wake: Callable[[], None] = lambda: None,
        ahead: int = 1,
    ) -> None:
        super().__init__(name=f"dnn-{task.name}", daemon=True)
        self.task = task
        self._run = run
        self._wake_runner = wake
        self._ahead = ahead
        self._observer = observer
        self._callbacks = callbacks
        self._clock = clock
        self._lock = threading.RLock()  # lock the RLock directly; via the Condition it is 10x slower
        self._wake = threading.Condition(self._lock)  # this thread waits here
        # Waited on by submit() for an empty mailbox and by wait_idle() for the end of all work.
        self._idle_or_room = threading.Condition(self._lock)
        self._frames = DnnFrames(task.name, task.cameras, max_failures, clock)
        self._max_batch = task.max_batch
        self._batch_delay = BatchDelay(task.max_batch, task.batch_delay_ns, clock)
        self._taken = 0  # inferences that are not finished
        self._finished: deque[Inference] = deque()  # not yet published
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

    def take(self) -> Inference | None:
        """The next inference. None if no frame waits, or if as many inferences as allowed are taken."""
        if not self._frames.waiting:  # without the lock: this is asked very often
            return None
        with self._lock:
            inference, too_old = self._take() if self._can_start() else (None, [])
        self._report(too_old)
        return inference

    def delay_s(self) -> float | None:
        """Seconds until `take` may return an inference; None: not before another frame arrives or one is finished."""
        waiting = self._frames.waiting
        if not waiting or self._taken >= self._ahead or (self._taken and waiting < self._max_batch):
            return None
        return self._batch_delay.remaining_s() or 0.0

    def finished(self, inference: Inference) -> None:
        """Receive an inference that has ended, to decode and publish its outputs."""
        with self._lock:
            self._taken -= 1
            self._finished.append(inference)
            self._wake.notify()

    def fail(self, message: str) -> None:
        """Disable the DNN, and drop the frames that are waiting or in progress."""
        with self._lock:
            drops, failure = self._frames.thread_ended(message)
            self._idle_or_room.notify_all()
        self._report(drops, failure)

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

    def disabled(self) -> str | None:
        """Why the DNN accepts no frames; None: it accepts them."""
        with self._lock:
            return self._frames.disabled

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
            self.fail(f"{type(error).__name__}: {error}")

    def _serve(self) -> None:
        while (inference := self._next()) is not None:
            self._publish_all(inference)
            del inference  # so that the frames' memory is freed while this thread waits

    def _next(self) -> Inference | None:
        """Wait for an inference that has ended, or run one. None at the end of the engine."""
        while True:
            with self._lock:
                while not self._finished and not (starts := self._run is not None and self._can_start()):
                    if self._is_finished():
                        return None
                    self._wake.wait(None if self._run is None else self._batch_delay.remaining_s())
                if self._finished:
                    return self._finished.popleft()
            inference = self.take() if starts else None
            if inference is not None and self._run is not None:
                self._run(inference)
                self._taken -= 1
                return inference

    def _can_start(self) -> bool:
        waiting = self._frames.waiting
        if not waiting or self._taken >= self._ahead:
            self._batch_delay.reset()
            return False
        if self._taken:  # the device works: a batch that is not full can still grow
            return waiting >= self._max_batch
        return self._closed or self._batch_delay.should_start(waiting)

    def _is_finished(self) -> bool:
        return self._closed and not self._frames.in_progress and not self._frames.waiting

    def _put_frame(self, frame: Frame) -> Drop | None:
        """Store the frame. Returns the drop of the frame that it replaces, or its own if it is refused."""
        drop = self._frames.put(frame, closed=self._closed)
        if drop is None or drop.frame is not frame:
            if self._run is None:
                self._wake_runner()
            else:
                self._wake.notify()
        return drop

    def _take(self) -> tuple[Inference | None, list[Drop]]:
        """Returns the next inference, and the drops of the frames that exceeded the maximum age.

        The inference is None if all waiting frames were too old.
        """
        now, task = self._clock(), self.task
        items, too_old = self._frames.take(task, self._max_batch, now)
        self._batch_delay.reset()
        self._idle_or_room.notify_all()  # submit() may wait for an empty mailbox
        if not items:
            return None, too_old
        self._taken += 1
        return Inference(task, tuple(items), task.priority, task.deadline_ns, now), too_old

    def _publish_all(self, inference: Inference) -> None:
        """Decode and publish the outputs, or record the drops."""
        begin = self._clock()
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
            with self._lock:
                self._frames.record_result(item)
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
