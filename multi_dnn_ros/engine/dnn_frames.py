"""The frames of one DNN, waiting and in progress, with their counts and the failures of the DNN."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.health import Health
from multi_dnn_ros.engine.inference import DropCause, Item
from multi_dnn_ros.engine.mailbox import Mailboxes
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.statistics import DnnCameraRecorder
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason, Timing

#: Reasons of drops that the DNN itself causes; too many such drops in a row disable it.
FAILURES = (DropReason.DNN_ERROR, DropReason.BAD_OUTPUT)


@dataclass(frozen=True)
class FailureLimits:
    """max_failures: consecutive failures that disable the DNN. window_ns: length of the statistics window."""

    max_failures: int = 5
    window_ns: int = 10_000_000_000


class DnnFrames:
    """Not thread-safe: the DNN thread that owns it calls it under its lock, except `waiting`, `is_in_progress` and
    `add_result`.

    Drops are counted here and returned, because the owner reports them after it has released the lock.

    dnn: name of the DNN. clock: nanoseconds, monotonic.
    """

    def __init__(self, dnn: str, cameras: Sequence[str], limits: FailureLimits, clock: Callable[[], int]) -> None:
        self._dnn = dnn
        self._mailboxes = Mailboxes(cameras)
        self._recorders = {camera: DnnCameraRecorder(limits.window_ns) for camera in cameras}
        self._health = Health(limits.max_failures, clock)
        self._in_progress: set[Item] = set()  # in progress: started, and not yet recorded as published or dropped
        # Published results that record_results has not recorded yet.
        self._unrecorded: deque[tuple[Item, Timing, int, int | None]] = deque()

    # -- waiting frames

    @property
    def waiting(self) -> int:
        """Number of waiting frames."""
        return len(self._mailboxes)

    def has_room(self, camera: str) -> bool:
        """Whether a new frame of the camera replaces no other: its mailbox is empty, or the DNN drops new frames."""
        return self._health.disabled is not None or self._mailboxes.is_empty(camera)

    def put(self, frame: Frame, *, closed: bool) -> Drop | None:
        """Store the frame in its mailbox. Returns the drop of the frame that it replaces, or its own if it is refused.

        closed: whether the engine is stopping.
        """
        self._recorders[frame.camera].offered += 1
        if closed:
            return self._drop(frame, DropReason.SHUTDOWN, "the engine is stopping")
        disabled = self._health.disabled
        if disabled is not None:
            return self._drop(frame, DropReason.DISABLED, disabled)
        old = self._mailboxes.put(frame)
        if old is None:
            return None
        return self._drop(old, DropReason.OVERWRITTEN, "a newer frame replaced it before the DNN started on it")

    def take(self, task: DnnTask, max_batch: int, now_ns: int) -> tuple[list[Item], list[Drop]]:
        """Take the frames of the next inference. Also returns the drops of those that exceeded the maximum age."""
        items: list[Item] = []
        too_old: list[Drop] = []
        while len(items) < max_batch and (frame := self._mailboxes.take()) is not None:
            if task.max_age_ns is not None and now_ns - frame.received_ns > task.max_age_ns:
                too_old.append(self._drop(frame, DropReason.TOO_OLD, "waited longer than the maximum age"))
            else:
                items.append(Item(frame))
        self._in_progress.update(items)
        return items, too_old

    def drop_waiting(self, reason: DropReason, message: str) -> list[Drop]:
        """Drop all waiting frames."""
        return [self._drop(frame, reason, message) for frame in self._mailboxes.clear()]

    # -- frames in progress

    @property
    def in_progress(self) -> int:
        """Number of frames in progress."""
        return len(self._in_progress)

    def is_in_progress(self, item: Item) -> bool:
        """Whether the frame is in progress. Without the lock the answer may be out of date."""
        return item in self._in_progress

    def add_result(self, item: Item, timing: Timing, published_ns: int, deadline_ns: int | None) -> None:
        """Keep a published result for `record_results`. Needs no lock."""
        self._unrecorded.append((item, timing, published_ns, deadline_ns))

    def record_results(self) -> bool:
        """Count the published results. Returns whether there were any.

        This is deferred because the receiver of the last result may have offered the frames of the next inference,
        which should start first.
        """
        if not self._unrecorded:
            return False
        while self._unrecorded:
            item, timing, published_ns, deadline_ns = self._unrecorded.popleft()
            if item in self._in_progress:  # otherwise abandoned before it was recorded
                self._in_progress.discard(item)
                self._recorders[item.frame.camera].record_published(timing, published_ns, deadline_ns)
                self._health.succeeded()
        return True

    def record_drops(self, items: Sequence[Item], cause: DropCause) -> tuple[list[Drop], Failure | None]:
        """Drop items with a common cause. If the DNN caused it, they count as one failure."""
        reason, message = cause
        self.record_results()
        dropped = [item for item in items if item in self._in_progress]
        self._in_progress.difference_update(dropped)
        drops = [self._drop(item.frame, reason, message) for item in dropped]
        if not dropped or reason not in FAILURES:
            return drops, None
        self._health.failed(message)
        failure, waiting = self._after_failure(message)
        return drops + waiting, failure

    def drop_in_progress(self, reason: DropReason, message: str) -> list[Drop]:
        """Drop all frames in progress; later results for them are ignored."""
        self.record_results()
        items, self._in_progress = self._in_progress, set()
        return [self._drop(item.frame, reason, message) for item in items]

    def thread_ended(self, message: str) -> tuple[list[Drop], Failure]:
        """An error of the engine ended the DNN's thread: disable the DNN and drop all its frames."""
        self._health.thread_ended(message)
        drops = self.drop_in_progress(DropReason.DNN_ERROR, message)
        failure, waiting = self._after_failure(message)
        return drops + waiting, failure

    # -- queries

    def copy_recorders(self) -> tuple[dict[str, DnnCameraRecorder], str | None]:
        """Copies of the recorders by camera, and the reason if the DNN is disabled."""
        return {camera: recorder.copy() for camera, recorder in self._recorders.items()}, self._health.disabled

    # -- internal

    def _drop(self, frame: Frame, reason: DropReason, message: str) -> Drop:
        self._recorders[frame.camera].dropped[reason] += 1
        return Drop(self._dnn, frame, reason, message)

    def _after_failure(self, message: str) -> tuple[Failure, list[Drop]]:
        """The report of a failure that `_health` has counted, and the drops of the waiting frames if it disables the
        DNN.
        """
        health = self._health
        disabled = health.disabled
        waiting = self.drop_waiting(DropReason.DISABLED, message) if disabled is not None else []
        failure = Failure(self._dnn, message, health.failures, disabled is not None, disabled or "", health.retry_s())
        return failure, waiting
