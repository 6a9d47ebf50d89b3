"""The thread of one DNN: its waiting frames become inferences, and their outputs results."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from multi_dnn_ros.backends.host import inference as inference_mode
from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.inference import DropCause, Inference
from multi_dnn_ros.engine.reports import Callbacks, Failure, Observer, call_and_log_errors
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason, Result, Timing

log = logging.getLogger(__name__)

#: Reasons of drops that the DNN itself causes; too many such drops in a row disable it.
FAILURES = (DropReason.DNN_ERROR, DropReason.BAD_OUTPUT)
#: Seconds until a disabled DNN is retried, by number of earlier retries; the last value applies to all further ones.
RETRY_DELAYS_S = (10.0, 60.0, 600.0)


class DnnThread(threading.Thread):
    """The DNN model thread of the paper (Kim, Kim, Kim 2022).

    One lock guards all shared state. Callbacks and decoding run without the lock, so a slow receiver delays this DNN
    only. Every offered frame ends as one result or one drop; the engine keeps no counts. Each camera has a mailbox for
    its newest frame; the mailboxes are emptied round-robin.

    max_failures: consecutive failures that disable the DNN; during a retry a single failure does. run: runs an
    inference to its end, in this thread; an error is left in its `drop_cause`. None: another thread calls `take` and
    `finished`, and `wake` is called when a frame waits. ahead: inferences that may have been taken and not yet
    finished. observer: its methods are called before and after decoding.
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
        self._mailboxes: dict[str, Frame] = {}  # the frames that wait, by camera
        self._turns = deque(task.cameras)  # the camera that is served next is first
        self._delay_until_ns: int | None = None  # while the idle DNN waits for frames of further cameras
        self._in_progress: set[Frame] = set()  # taken, and neither published nor dropped
        self._taken = 0  # inferences that are not finished
        self._finished: deque[Inference] = deque()  # not yet published
        self._closed = False
        self._max_failures = max_failures
        self._failures = 0  # consecutive
        self._retries = 0
        self._disabled = ""  # why the DNN accepts no frames
        self._retry_ns: int | None = None  # when a disabled DNN is retried; None: never

    # -- called from other threads

    def offer(self, frame: Frame) -> None:
        """Store the frame; never blocks. The frame that it replaces is dropped, or itself if it is refused."""
        with self._lock:
            if self._closed:
                drop = self._drop(frame, DropReason.SHUTDOWN, "the engine is stopping")
            elif self._disabled and (disabled := self._why_disabled()):
                drop = self._drop(frame, DropReason.DISABLED, disabled)
            else:
                old, self._mailboxes[frame.camera] = self._mailboxes.get(frame.camera), frame
                if self._run is None:
                    self._wake_runner()
                else:
                    self._wake.notify()
                if old is None:
                    return
                message = "a newer frame replaced it before the DNN started on it"
                drop = self._drop(old, DropReason.OVERWRITTEN, message)
        self._report([drop])

    def submit(self, frame: Frame, timeout_s: float | None) -> bool:
        """Wait until the camera's mailbox is empty, then offer the frame. False on timeout."""

        def has_room() -> bool:
            return self._closed or frame.camera not in self._mailboxes or bool(self._why_disabled())

        with self._lock:
            if not self._idle_or_room.wait_for(has_room, timeout_s):
                return False
        self.offer(frame)  # no other thread offers frames of this camera
        return True

    def take(self) -> Inference | None:
        """The next inference. None if no frame waits, or if as many inferences as allowed are taken."""
        if not self._mailboxes:  # without the lock: this is asked very often
            return None
        with self._lock:
            inference, too_old = self._take()
        self._report(too_old)
        return inference

    def delay_s(self) -> float | None:
        """Seconds until `take` may return an inference; None: not before another frame arrives or one is finished."""
        waiting = len(self._mailboxes)
        if not waiting or self._taken >= self._ahead or (self._taken and waiting < self.task.max_batch):
            return None
        return self._remaining_delay_s() or 0.0

    def finished(self, inference: Inference) -> None:
        """Receive an inference that has ended, to decode and publish its outputs."""
        with self._lock:
            self._taken -= 1
            self._finished.append(inference)
            self._wake.notify()

    def fail(self, message: str) -> None:
        """Disable the DNN for ever, because a thread of the engine ended, and drop all its frames."""
        with self._lock:
            self._failures += 1
            self._retry_ns, self._disabled = None, f"disabled because its thread ended: {message}"
            drops = self._drop_in_progress(DropReason.DNN_ERROR, message)
            failure = self._failure(message, drops)
            self._idle_or_room.notify_all()
        self._report(drops, failure)

    def update(self, **settings: int | None) -> None:
        """Change attributes of the task for inferences that start from now on: those that are not None; 0: none."""
        changes: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
        changes |= {name: changes[name] or None for name in ("deadline_ns", "max_age_ns") if name in changes}
        with self._lock:
            self.task = replace(self.task, **changes)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no frame is waiting or in progress. False on timeout."""
        with self._lock:
            return self._idle_or_room.wait_for(lambda: not self._in_progress and not self._mailboxes, timeout_s)

    def close(self) -> None:
        """Drop the waiting frames, accept no more, and end once those in progress are finished."""
        with self._lock:
            self._closed = True
            drops = self._drop_waiting(DropReason.SHUTDOWN, "the engine stopped while the frame was waiting")
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
            with inference_mode():
                while (inference := self._next()) is not None:
                    self._publish(inference)
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
                if self._finished:
                    return self._finished.popleft()
                inference, too_old = (None, []) if self._run is None else self._take()
                if inference is None and not too_old:
                    if self._closed and not self._in_progress:
                        return None
                    delayed = self._run is not None and self._delay_until_ns is not None
                    self._wake.wait(self._remaining_delay_s() if delayed else None)
                    continue
            if too_old:
                self._report(too_old)
            if inference is not None and self._run is not None:
                self._run(inference)
                self._taken -= 1
                return inference

    def _publish(self, inference: Inference) -> None:
        """Decode and publish the outputs, or report the drops."""
        for frame, cause in inference.failed.items():
            self._drop_frames([frame], cause)
        if inference.drop_cause is not None:
            self._drop_frames(inference.remaining, inference.drop_cause)
            return
        rows, inference.rows = inference.rows, []
        for frame, outputs in zip(inference.remaining, rows, strict=False):  # a batch on a GPU is padded
            reason = DropReason.BAD_OUTPUT
            self._observer.began(self.task.name)
            begin_ns = self._clock()
            # Whatever a decoder or a receiver raises, sys.exit() included, the thread must continue.
            try:
                try:
                    output = inference.task.decode(outputs, frame.size)
                finally:
                    self._observer.ended(self.task.name)
                end_ns = self._clock()
                # Positional: keywords take twice as long, and the next inference may be waiting for these results.
                timing = Timing(
                    frame.received_ns, inference.started_ns, end_ns, inference.pre_ns, inference.queue_ns,
                    inference.compute_ns, end_ns - begin_ns, len(inference.frames), frame.decode_ns,
                )  # fmt: skip
                if frame not in self._in_progress:  # dropped by abandon()
                    continue
                reason = DropReason.PUBLISH_ERROR
                self._callbacks.on_result(Result(inference.task.name, frame, output, timing))
            except BaseException as error:
                self._drop_frames([frame], (reason, f"{type(error).__name__}: {error}"))
                continue
            with self._lock:
                if frame in self._in_progress:
                    self._in_progress.discard(frame)
                    self._failures = self._retries = 0
                self._idle_or_room.notify_all()

    # -- under the lock

    def _remaining_delay_s(self) -> float | None:
        """Seconds until a batch that is not full starts; None: none waits."""
        until_ns = self._delay_until_ns
        return None if until_ns is None else max(0, until_ns - self._clock()) / 1e9

    def _take(self) -> tuple[Inference | None, list[Drop]]:
        """Returns the next inference, and the drops of the frames that exceeded the maximum age.

        The inference is None if it must wait, or if all waiting frames were too old.
        """
        now, task, waiting = self._clock(), self.task, len(self._mailboxes)
        if not waiting or self._taken >= self._ahead:
            self._delay_until_ns = None
            return None, []
        if waiting < task.max_batch:
            if self._taken:  # the device works: the batch can still grow
                return None, []
            if self._delay_until_ns is None:
                self._delay_until_ns = now + task.batch_delay_ns
            if now < self._delay_until_ns:
                return None, []
        frames: list[Frame] = []
        too_old: list[Drop] = []
        while len(frames) < task.max_batch and self._mailboxes:
            camera = self._turns[0]
            self._turns.rotate(-1)
            frame = self._mailboxes.pop(camera, None)
            if frame is None:
                continue
            if task.max_age_ns is not None and now - frame.received_ns > task.max_age_ns:
                too_old.append(self._drop(frame, DropReason.TOO_OLD, "waited longer than the maximum age"))
            else:
                frames.append(frame)
        self._delay_until_ns = None
        self._idle_or_room.notify_all()  # submit() may wait for an empty mailbox
        if not frames:
            return None, too_old
        self._in_progress.update(frames)
        self._taken += 1
        return Inference(task, tuple(frames), now), too_old

    def _drop_waiting(self, reason: DropReason, message: str) -> list[Drop]:
        frames, self._mailboxes = self._mailboxes, {}
        return [self._drop(frame, reason, message) for frame in frames.values()]

    def _drop_in_progress(self, reason: DropReason, message: str) -> list[Drop]:
        frames, self._in_progress = self._in_progress, set()
        return [self._drop(frame, reason, message) for frame in frames]

    def _drop(self, frame: Frame, reason: DropReason, message: str) -> Drop:
        return Drop(self.task.name, frame, reason, message)

    # -- failures

    def _why_disabled(self) -> str:
        """Why the DNN accepts no frames; empty: it accepts them, possibly as a retry."""
        if self._retry_ns is not None and self._clock() >= self._retry_ns:
            self._disabled, self._retry_ns = "", None
        return self._disabled

    def _count_failure(self, message: str) -> None:
        """A frame, or a batch of frames, was dropped because of the DNN. Disables it after too many in a row."""
        self._failures += 1
        if not self._why_disabled() and (self._retries or self._failures >= self._max_failures):
            pause_s = RETRY_DELAYS_S[min(self._retries, len(RETRY_DELAYS_S) - 1)]
            self._retries += 1
            self._retry_ns = self._clock() + round(pause_s * 1e9)
            self._disabled = (
                f"disabled after {self._failures} failures in a row, next retry in {pause_s:g} s; last error: {message}"
            )

    def _failure(self, message: str, drops: list[Drop]) -> Failure:
        """The report of a failure that was counted. If it disables the DNN, the waiting frames are added to `drops`."""
        reason = self._why_disabled()
        if reason:
            drops += self._drop_waiting(DropReason.DISABLED, message)
        retry_s = None if self._retry_ns is None else max(0.0, (self._retry_ns - self._clock()) / 1e9)
        return Failure(self.task.name, message, self._failures, bool(reason), reason, retry_s)

    def _drop_frames(self, frames: Sequence[Frame], cause: DropCause) -> None:
        """Drop frames with a common cause. If the DNN caused it, they count as one failure."""
        reason, message = cause
        failure = None
        with self._lock:
            dropped = [frame for frame in frames if frame in self._in_progress]
            self._in_progress.difference_update(dropped)
            drops = [self._drop(frame, reason, message) for frame in dropped]
            if dropped and reason in FAILURES:
                self._count_failure(message)
                failure = self._failure(message, drops)
            self._idle_or_room.notify_all()
        self._report(drops, failure)

    def _report(self, drops: Iterable[Drop], failure: Failure | None = None) -> None:
        for drop in drops:
            call_and_log_errors(self._callbacks.on_drop, drop)
        if failure is not None:
            call_and_log_errors(self._callbacks.on_failure, failure)
