"""What became of every frame: one account for each DNN on each camera, kept in the node's process.

An engine process may end at any moment, so the frames that it has are counted here and not there: each one that was
offered ends as published or as dropped for a reason, exactly once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Callbacks, Failure, guarded
from multi_dnn_ros.engine.statistics import Statistics, StreamRecorder
from multi_dnn_ros.engine.task import Drop, DropReason, Result, Timing

log = logging.getLogger(__name__)

Stream = tuple[str, str]  # DNN, camera


class _Held(Protocol):
    def release(self) -> None: ...


@dataclass
class _Open:
    """A frame that some DNNs have not answered yet.

    buffer: with its image. held: DNNs whose answer, with its callback, is not through; the last one releases the
    buffer. handed_ns: when it was opened.
    """

    frame: Frame
    buffer: _Held
    waiting: set[str]
    held: int
    handed_ns: int


def _nobody(dnn: str, camera: str, handed_ns: int, timing: Timing | None) -> None:
    pass


class Accounts:
    """Thread-safe. The callbacks run in the thread that reports, without the lock.

    streams: the cameras of each DNN. deadlines_ns: by DNN, from arrival; None: none. clock: nanoseconds, monotonic.
    window_ns: how far back percentiles and rates look. on_answered: told of each answer before its callback runs: DNN,
    camera, when it was handed the frame, and the timing of a result (None: it lost the frame); must not block or raise.
    """

    def __init__(
        self,
        streams: Mapping[str, tuple[str, ...]],
        callbacks: Callbacks,
        clock: Callable[[], int],
        deadlines_ns: Mapping[str, int | None] | None = None,
        window_ns: int = 10_000_000_000,
        on_answered: Callable[[str, str, int, Timing | None], None] = _nobody,
    ) -> None:
        self.streams = dict(streams)
        self._on_answered = on_answered
        self._callbacks = callbacks
        self._clock = clock
        self._deadlines_ns = dict(deadlines_ns or {})
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._numbers = 0
        self._open: dict[int, _Open] = {}
        self._busy = 0  # answers whose callback runs
        self._disabled: dict[str, tuple[str, int | None]] = {}  # why, and until when
        self._recorders = {
            (dnn, camera): StreamRecorder(window_ns) for dnn, cameras in streams.items() for camera in cameras
        }
        self._dnns: dict[str, tuple[str, ...]] = {}
        for dnn, camera in self._recorders:
            self._dnns[camera] = (*self._dnns.get(camera, ()), dnn)

    def dnns_of(self, camera: str) -> tuple[str, ...]:
        """The DNNs that take its frames."""
        return self._dnns.get(camera, ())

    # -- frames on their way in

    def arrived(self, camera: str) -> None:
        """An image came in: offered to every DNN of the camera."""
        with self._lock:
            for dnn in self.dnns_of(camera):
                self._recorders[dnn, camera].offered += 1

    def lost(self, frame: Frame, reason: DropReason, message: str) -> None:
        """A frame that arrived was lost by all DNNs of its camera before one had it (overwritten, bad image).

        By those that are disabled it is lost for that, unless its image is bad.
        """
        for dnn in self.dnns_of(frame.camera):
            disabled = self._why_disabled(dnn)
            if disabled is not None and reason is not DropReason.BAD_IMAGE:
                self._count_drop(Drop(dnn, frame, DropReason.DISABLED, disabled))
            else:
                self._count_drop(Drop(dnn, frame, reason, message))

    def open(self, frame: Frame, buffer: _Held, dnns: Iterable[str]) -> int:
        """A frame that arrived is handed to these DNNs; its number. The buffer is released after the last answer.

        Other DNNs of its camera have no engine at this moment: they have lost it.
        """
        waiting = set(dnns)
        with self._lock:
            self._numbers += 1
            number = self._numbers
            if waiting:
                self._open[number] = _Open(frame, buffer, waiting, len(waiting), self._clock())
        for dnn in self.dnns_of(frame.camera):
            if dnn not in waiting:
                disabled = self._why_disabled(dnn)
                reason = DropReason.ENGINE_LOST if disabled is None else DropReason.DISABLED
                message = disabled or "no engine process serves the DNN at this moment"
                self._count_drop(Drop(dnn, frame, reason, message))
        if not waiting:
            buffer.release()
        return number

    # -- answers

    def result(self, number: int, dnn: str, output: Any, timing: Timing) -> None:
        """A DNN's result; ignored when the frame was settled already."""
        entry = self._answer(number, dnn, timing)
        if entry is None:
            return
        stream = dnn, entry.frame.camera
        try:
            self._callbacks.on_result(Result(dnn, entry.frame, output, timing))
        except Exception as error:
            drop = Drop(dnn, entry.frame, DropReason.PUBLISH_ERROR, f"{type(error).__name__}: {error}")
            self._count_drop(drop)
        else:
            with self._lock:
                self._recorders[stream].publish(timing, self._clock(), self._deadlines_ns.get(dnn))
        self._release(entry)

    def drop(self, number: int, dnn: str, reason: DropReason, message: str) -> None:
        """A DNN lost the frame; ignored when it was settled already."""
        entry = self._answer(number, dnn, None)
        if entry is not None:
            self._count_drop(Drop(dnn, entry.frame, reason, message))
            self._release(entry)

    def drop_unanswered(self, dnns: Iterable[str], reason: DropReason, message: str) -> int:
        """Every frame that these DNNs have not answered is lost; how many answers that were."""
        gone = set(dnns)
        with self._lock:
            open_ = [(number, dnn) for number, entry in self._open.items() for dnn in entry.waiting & gone]
        for number, dnn in open_:
            self.drop(number, dnn, reason, message)
        return len(open_)

    def failure(self, failure: Failure) -> None:
        """A DNN lost frames by its own fault."""
        if failure.disabled:
            until_ns = None if failure.retry_s is None else self._clock() + round(failure.retry_s * 1e9)
            with self._lock:
                self._disabled[failure.dnn] = failure.reason or failure.message, until_ns
        guarded(self._callbacks.on_failure, failure)

    def enabled(self, dnn: str) -> None:
        """A DNN that was disabled is tried again."""
        with self._lock:
            self._disabled.pop(dnn, None)

    # -- questions

    def set_deadline(self, dnn: str, deadline_ns: int | None) -> None:
        """For results from now on."""
        with self._lock:
            self._deadlines_ns[dnn] = deadline_ns

    def under_way(self, stream: Stream) -> int:
        """Frames that a DNN was handed from a camera and has not answered."""
        dnn, camera = stream
        with self._lock:
            return sum(dnn in entry.waiting and entry.frame.camera == camera for entry in self._open.values())

    def handed_ns(self, stream: Stream) -> int | None:
        """When a DNN was handed the oldest frame from a camera that it has not answered; None: it has none."""
        dnn, camera = stream
        with self._lock:
            for entry in self._open.values():  # oldest first
                if dnn in entry.waiting and entry.frame.camera == camera:
                    return entry.handed_ns
        return None

    def enabled_dnns(self, camera: str) -> tuple[str, ...]:
        """The DNNs of the camera that are not disabled."""
        return tuple(dnn for dnn in self.dnns_of(camera) if self._why_disabled(dnn) is None)

    def statistics(self) -> Statistics:
        """A snapshot."""
        now_ns = self._clock()
        with self._lock:
            recorders = {stream: recorder.copy() for stream, recorder in self._recorders.items()}
        disabled = {dnn: why for dnn in self.streams if (why := self._why_disabled(dnn)) is not None}
        return Statistics({stream: recorder.snapshot(now_ns) for stream, recorder in recorders.items()}, disabled)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until every frame was answered and every callback has returned; False when it takes longer."""
        with self._lock:
            return self._settled.wait_for(lambda: not self._open and not self._busy, timeout_s)

    # -- inside

    def _why_disabled(self, dnn: str) -> str | None:
        """None: it is not, or is to be tried again."""
        with self._lock:
            why, until_ns = self._disabled.get(dnn, (None, None))
            if until_ns is not None and self._clock() >= until_ns:
                del self._disabled[dnn]
                return None
            return why

    def _answer(self, number: int, dnn: str, timing: Timing | None) -> _Open | None:
        with self._lock:
            entry = self._open.get(number)
            if entry is None or dnn not in entry.waiting:
                return None
            entry.waiting.discard(dnn)
            if not entry.waiting:
                del self._open[number]
            self._busy += 1
        self._on_answered(dnn, entry.frame.camera, entry.handed_ns, timing)
        return entry

    def _release(self, entry: _Open) -> None:
        with self._lock:
            self._busy -= 1
            entry.held -= 1
            last = not entry.held
            self._settled.notify_all()
        if last:
            entry.buffer.release()

    def _count_drop(self, drop: Drop) -> None:
        with self._lock:
            self._recorders[drop.dnn, drop.frame.camera].dropped[drop.reason] += 1
        guarded(self._callbacks.on_drop, drop)
