"""The thread of one DNN: its waiting frames become inferences, and their outputs results."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.health import Health
from multi_dnn_ros.engine.inference import DropCause, Inference, Item
from multi_dnn_ros.engine.observer import Observer
from multi_dnn_ros.engine.reports import Callbacks, Failure, call_and_log_errors
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason
from multi_dnn_ros.engine.waiting import BatchDelay, Mailboxes

log = logging.getLogger(__name__)

#: Reasons of drops that the DNN itself causes; too many such drops in a row disable it.
FAILURES = (DropReason.DNN_ERROR, DropReason.BAD_OUTPUT)


class DnnThread(threading.Thread):
    """The DNN model thread of the paper (Kim, Kim, Kim 2022).

    One lock guards all shared state. Callbacks and decoding run without the lock, so a slow receiver delays this DNN
    only. Every offered frame ends as one result or one drop; the engine keeps no counts.

    max_failures: consecutive failures that disable the DNN. run: runs an inference to its end, in this thread; an error
    is left in its `drop_cause`. None: another thread calls `take` and `finished`, and `wake` is called when a frame
    waits. ahead: inferences that may have been taken and not yet finished. observer: its methods are called before and
    after decoding.
    """

    def __init__(
        self,
        task: DnnTask,
        callbacks: Callbacks,
        clock: Callable[[], int],
        observer: Observer,
        *,
        max_failures: int = 5,
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
        self._waiting = Mailboxes(task.cameras)
        self._batch_delay = BatchDelay(task.max_batch, task.batch_delay_ns, clock)
        self._health = Health(max_failures, clock)
        self._in_progress: set[Item] = set()  # taken, and neither published nor dropped
        self._taken = 0  # inferences that are not finished
        self._finished: deque[Inference] = deque()  # not yet published
        self._closed = False

    # -- called from other threads

    def offer(self, frame: Frame) -> None:
        """Store the frame; never blocks. The frame it replaces is dropped."""
        with self._lock:
            drops = self._put_frame(frame)
        self._report(drops)

    def submit(self, frame: Frame, timeout_s: float | None) -> bool:
        """Wait until the camera's mailbox is empty, then offer the frame. False on timeout."""

        def has_room() -> bool:
            return self._closed or self._health.disabled is not None or self._waiting.is_empty(frame.camera)

        with self._lock:
            if not self._idle_or_room.wait_for(has_room, timeout_s):
                return False
            drops = self._put_frame(frame)
        self._report(drops)
        return True

    def take(self) -> Inference | None:
        """The next inference. None if no frame waits, or if as many inferences as allowed are taken."""
        if not self._waiting:  # without the lock: this is asked very often
            return None
        with self._lock:
            inference, too_old = self._take() if self._can_start() else (None, [])
        self._report(too_old)
        return inference

    def delay_s(self) -> float | None:
        """Seconds until `take` may return an inference; None: not before another frame arrives or one is finished."""
        waiting = len(self._waiting)
        if not waiting or self._taken >= self._ahead or (self._taken and waiting < self.task.max_batch):
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
            self._health.thread_ended(message)
            drops = self._drop_in_progress(DropReason.DNN_ERROR, message)
            failure = self._failure(message, drops)
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
        with self._lock:
            return self._idle_or_room.wait_for(lambda: not self._in_progress and not self._waiting, timeout_s)

    def close(self, *, drop_waiting: bool) -> None:
        """Accept no more frames, and end once those in progress are finished."""
        message = "the engine stopped while the frame was waiting"
        with self._lock:
            self._closed = True
            drops = self._drop_waiting(DropReason.SHUTDOWN, message) if drop_waiting else []
            self._wake.notify()
            self._idle_or_room.notify_all()
        self._report(drops)

    def abandon(self) -> None:
        """Drop the frames in progress; later results for them are ignored."""
        with self._lock:
            drops = self._drop_in_progress(DropReason.SHUTDOWN, "still running after the engine's stop timeout")
            self._wake.notify()
            self._idle_or_room.notify_all()
        self._report(drops)

    # -- the thread

    def run(self) -> None:
        try:
            while (inference := self._next()) is not None:
                self._publish_all(inference)
                del inference  # so that the frames' memory is freed while this thread waits
        except BaseException as error:  # an error in the engine itself, which must be reported as well
            log.exception(
                "the thread of DNN %s ended with an error; the DNN is disabled, and its engine process is replaced "
                "(isolation: process)",
                self.task.name,
            )
            self.fail(f"{type(error).__name__}: {error}")

    def _next(self) -> Inference | None:
        """Wait for an inference that has ended, or run one. None at the end of the engine."""
        while True:
            with self._lock:
                while not self._finished and not (starts := self._run is not None and self._can_start()):
                    if self._closed and not self._in_progress and not self._waiting:
                        return None
                    self._wake.wait(None if self._run is None else self._batch_delay.remaining_s())
                if self._finished:
                    return self._finished.popleft()
            inference = self.take() if starts else None
            if inference is not None and self._run is not None:
                self._run(inference)
                self._taken -= 1
                return inference

    def _publish_all(self, inference: Inference) -> None:
        """Decode and publish the outputs, or report the drops."""
        begin = self._clock()
        row = 0
        for item in inference.items:
            if item.drop_cause is not None:
                self._drop_items([item], item.drop_cause)
            elif inference.drop_cause is None:
                if row:
                    begin = self._clock()
                self._publish(inference, item, row, begin)
                row += 1
        inference.rows = []
        if inference.drop_cause is not None:
            self._drop_items([item for item in inference.items if item.drop_cause is None], inference.drop_cause)

    def _publish(self, inference: Inference, item: Item, row: int, begin_ns: int) -> None:
        self._observer.began(self.task.name)
        result = inference.decode(item, row, begin_ns, self._clock)
        self._observer.ended(self.task.name)
        if item not in self._in_progress:  # dropped by abandon()
            return
        if result is not None:
            try:
                self._callbacks.on_result(result)
            except BaseException as error:  # a receiver that raises must not end the thread
                item.drop_cause = (DropReason.PUBLISH_ERROR, f"{type(error).__name__}: {error}")
        if item.drop_cause is not None:
            self._drop_items([item], item.drop_cause)
            return
        with self._lock:
            if item in self._in_progress:
                self._in_progress.discard(item)
                self._health.succeeded()
            self._idle_or_room.notify_all()

    # -- under the lock

    def _can_start(self) -> bool:
        waiting = len(self._waiting)
        if not waiting or self._taken >= self._ahead:
            self._batch_delay.reset()
            return False
        if self._taken:  # the device works: a batch that is not full can still grow
            return waiting >= self.task.max_batch
        return self._closed or self._batch_delay.should_start(waiting)

    def _put_frame(self, frame: Frame) -> list[Drop]:
        """Store the frame. Returns the drop of the frame that it replaces, or its own if it is refused."""
        if self._closed:
            return [self._drop(frame, DropReason.SHUTDOWN, "the engine is stopping")]
        if (disabled := self._health.disabled) is not None:
            return [self._drop(frame, DropReason.DISABLED, disabled)]
        old = self._waiting.put(frame)
        if self._run is None:
            self._wake_runner()
        else:
            self._wake.notify()
        if old is None:
            return []
        message = "a newer frame replaced it before the DNN started on it"
        return [self._drop(old, DropReason.OVERWRITTEN, message)]

    def _take(self) -> tuple[Inference | None, list[Drop]]:
        """Returns the next inference, and the drops of the frames that exceeded the maximum age.

        The inference is None if all waiting frames were too old.
        """
        now, task = self._clock(), self.task
        items: list[Item] = []
        too_old: list[Drop] = []
        while len(items) < task.max_batch and (frame := self._waiting.take()) is not None:
            if task.max_age_ns is not None and now - frame.received_ns > task.max_age_ns:
                too_old.append(self._drop(frame, DropReason.TOO_OLD, "waited longer than the maximum age"))
            else:
                items.append(Item(frame))
        self._batch_delay.reset()
        self._idle_or_room.notify_all()  # submit() may wait for an empty mailbox
        if not items:
            return None, too_old
        self._in_progress.update(items)
        self._taken += 1
        return Inference(task, tuple(items), task.priority, task.deadline_ns, now), too_old

    def _drop_waiting(self, reason: DropReason, message: str) -> list[Drop]:
        return [self._drop(frame, reason, message) for frame in self._waiting.clear()]

    def _drop_in_progress(self, reason: DropReason, message: str) -> list[Drop]:
        items, self._in_progress = self._in_progress, set()
        return [self._drop(item.frame, reason, message) for item in items]

    def _drop(self, frame: Frame, reason: DropReason, message: str) -> Drop:
        return Drop(self.task.name, frame, reason, message)

    def _failure(self, message: str, drops: list[Drop]) -> Failure:
        """The report of a failure that was counted. If it disables the DNN, the waiting frames are added to `drops`."""
        health = self._health
        disabled = health.disabled
        if disabled is not None:
            drops += self._drop_waiting(DropReason.DISABLED, message)
        return Failure(self.task.name, message, health.failures, disabled is not None, disabled or "", health.retry_s())

    # -- reports

    def _drop_items(self, items: Iterable[Item], cause: DropCause) -> None:
        """Drop items with a common cause. If the DNN caused it, they count as one failure."""
        reason, message = cause
        failure = None
        with self._lock:
            dropped = [item for item in items if item in self._in_progress]
            self._in_progress.difference_update(dropped)
            drops = [self._drop(item.frame, reason, message) for item in dropped]
            if dropped and reason in FAILURES:
                self._health.failed(message)
                failure = self._failure(message, drops)
            self._idle_or_room.notify_all()
        self._report(drops, failure)

    def _report(self, drops: Iterable[Drop], failure: Failure | None = None) -> None:
        for drop in drops:
            call_and_log_errors(self._callbacks.on_drop, drop)
        if failure is not None:
            call_and_log_errors(self._callbacks.on_failure, failure)
