"""The frames of one DNN, waiting and in progress, and the failures of the DNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.health import Health
from multi_dnn_ros.engine.inference import DropCause, Item
from multi_dnn_ros.engine.mailbox import Mailboxes
from multi_dnn_ros.engine.reports import Failure
from multi_dnn_ros.engine.task import DnnTask, Drop, DropReason

#: Reasons of drops that the DNN itself causes; too many such drops in a row disable it.
FAILURES = (DropReason.DNN_ERROR, DropReason.BAD_OUTPUT)


class DnnFrames:
    """Not thread-safe: the DNN thread that owns it calls it under its lock, except `waiting` and `is_in_progress`.

    Drops are returned, because the owner reports them after it has released the lock.

    dnn: name of the DNN. max_failures: consecutive failures that disable it. clock: nanoseconds, monotonic.
    """

    def __init__(self, dnn: str, cameras: Sequence[str], max_failures: int, clock: Callable[[], int]) -> None:
        self._dnn = dnn
        self._mailboxes = Mailboxes(cameras)
        self._health = Health(max_failures, clock)
        self._in_progress: set[Item] = set()  # in progress: started, and not yet recorded as published or dropped

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

    def record_result(self, item: Item) -> None:
        """The result of a frame was published; no effect if the frame was abandoned before."""
        if item in self._in_progress:
            self._in_progress.discard(item)
            self._health.succeeded()

    def record_drops(self, items: Sequence[Item], cause: DropCause) -> tuple[list[Drop], Failure | None]:
        """Drop items with a common cause. If the DNN caused it, they count as one failure."""
        reason, message = cause
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
        items, self._in_progress = self._in_progress, set()
        return [self._drop(item.frame, reason, message) for item in items]

    def thread_ended(self, message: str) -> tuple[list[Drop], Failure]:
        """An error of the engine ended the DNN's thread: disable the DNN and drop all its frames."""
        self._health.thread_ended(message)
        drops = self.drop_in_progress(DropReason.DNN_ERROR, message)
        failure, waiting = self._after_failure(message)
        return drops + waiting, failure

    @property
    def disabled(self) -> str | None:
        """Why the DNN accepts no frames; None: it accepts them."""
        return self._health.disabled

    # -- internal

    def _drop(self, frame: Frame, reason: DropReason, message: str) -> Drop:
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
