"""Accounts for every frame, per DNN and camera, in the node's process.

An engine process may end at any moment, so its frames are counted here: each DNN *answers* each frame that was handed
to it exactly once, by a result, which is published, or by a drop with a reason. A frame that all its DNNs have answered
is *settled*.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Callbacks, Failure, call_and_log_errors
from multi_dnn_ros.engine.statistics import DnnCamera, DnnCameraRecorder, Statistics
from multi_dnn_ros.engine.task import Drop, DropReason, Result, Timing


class _Buffer(Protocol):
    def release(self) -> None: ...


@dataclass
class _OpenFrame:
    """A frame that some DNNs have not answered yet.

    buffer: contains the image. unanswered: DNNs without an answer. computed: those of them whose result exists but
    waits for results of earlier frames. users: number of DNNs that have no answer yet, or whose callback is still
    running; the last one releases the buffer. handed_ns: when the frame was handed to the engine.
    """

    frame: Frame
    buffer: _Buffer
    unanswered: set[str]
    users: int
    handed_ns: int
    computed: set[str] = field(default_factory=set)


def _ignore(dnn: str, camera: str, handed_ns: int, timing: Timing | None) -> None:
    pass


class Accounts:
    """What became of each frame, per DNN. Thread-safe. The callbacks run in the thread that reports the event, without
    the lock.

    deadlines_ns: by DNN, from arrival; None: no deadline. clock: nanoseconds, monotonic. window_ns: window of
    percentiles and rates. on_answered: called for each answer before its callback runs, with DNN, camera, the time when
    the frame was handed to the engine, and the timing of the result (None: a drop); must not block or raise.
    """

    def __init__(
        self,
        cameras_by_dnn: Mapping[str, tuple[str, ...]],
        callbacks: Callbacks,
        clock: Callable[[], int],
        deadlines_ns: Mapping[str, int | None] | None = None,
        window_ns: int = 10_000_000_000,
        on_answered: Callable[[str, str, int, Timing | None], None] = _ignore,
    ) -> None:
        self.cameras_by_dnn = dict(cameras_by_dnn)
        self._on_answered = on_answered
        self._callbacks = callbacks
        self._clock = clock
        self._deadlines_ns = dict(deadlines_ns or {})
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._last_number = 0
        self._open: dict[int, _OpenFrame] = {}
        self._callbacks_running = 0
        self._disabled: dict[str, tuple[str, int | None]] = {}  # by DNN, the reason and the time of the retry
        self._recorders = {
            (dnn, camera): DnnCameraRecorder(window_ns) for dnn, cameras in cameras_by_dnn.items() for camera in cameras
        }
        self._devices: Mapping[str, int] = {}
        self._dnns: dict[str, tuple[str, ...]] = {}
        for dnn, camera in self._recorders:
            self._dnns[camera] = (*self._dnns.get(camera, ()), dnn)

    def dnns_of(self, camera: str) -> tuple[str, ...]:
        """The DNNs that process the frames of the camera."""
        return self._dnns.get(camera, ())

    # -- arriving frames

    def arrived(self, camera: str) -> None:
        """An image arrived: count it as offered to every DNN of the camera."""
        with self._lock:
            for dnn in self.dnns_of(camera):
                self._recorders[dnn, camera].offered += 1

    def refused(self, frame: Frame, dnn: str, reason: DropReason, message: str) -> None:
        """An arrived frame was not for this DNN, because of its parameters."""
        self._count_drop(Drop(dnn, frame, reason, message))

    def lost(self, frame: Frame, reason: DropReason, message: str, dnns: Iterable[str]) -> None:
        """An arrived frame was lost before it was handed to the engine (overwritten, bad image): drop it for each DNN.

        dnns: the DNNs without an answer to it. For a disabled DNN the reason is `disabled`, unless the image is bad.
        """
        for dnn in dnns:
            disabled = self._disabled_reason(dnn)
            if disabled is not None and reason is not DropReason.BAD_IMAGE:
                self._count_drop(Drop(dnn, frame, DropReason.DISABLED, disabled))
            else:
                self._count_drop(Drop(dnn, frame, reason, message))

    def open(self, frame: Frame, buffer: _Buffer, dnns: Iterable[str]) -> int:
        """An arrived frame is handed to the engine for these DNNs, at least one. Returns its number.

        The buffer is released after the last answer.
        """
        unanswered = set(dnns)
        with self._lock:
            self._last_number += 1
            self._open[self._last_number] = _OpenFrame(frame, buffer, unanswered, len(unanswered), self._clock())
            return self._last_number

    # -- answers

    def result(self, number: int, dnn: str, output: Any, timing: Timing) -> None:
        """A DNN's result; ignored if the DNN has already answered the frame."""
        entry = self._answer(number, dnn, timing)
        if entry is None:
            return
        dnn_camera = dnn, entry.frame.camera
        try:
            self._callbacks.on_result(Result(dnn, entry.frame, output, timing))
        except (Exception, SystemExit) as error:  # of the message function of another package
            drop = Drop(dnn, entry.frame, DropReason.PUBLISH_ERROR, f"{type(error).__name__}: {error}")
            self._count_drop(drop)
        else:
            with self._lock:
                self._recorders[dnn_camera].record_published(timing, self._clock(), self._deadlines_ns.get(dnn))
        self._release(entry)

    def drop(self, number: int, dnn: str, reason: DropReason, message: str) -> None:
        """A DNN dropped the frame; ignored if the DNN has already answered it."""
        entry = self._answer(number, dnn, None)
        if entry is not None:
            self._count_drop(Drop(dnn, entry.frame, reason, message))
            self._release(entry)

    def drop_unanswered(self, dnns: Iterable[str], reason: DropReason, message: str) -> int:
        """Drop every frame that these DNNs have not answered. Returns the number of drops."""
        names = set(dnns)
        with self._lock:
            unanswered = [(number, dnn) for number, entry in self._open.items() for dnn in entry.unanswered & names]
        for number, dnn in unanswered:
            self.drop(number, dnn, reason, message)
        return len(unanswered)

    def failure(self, failure: Failure) -> None:
        """A DNN failed: frames were lost because of an error of the DNN."""
        if failure.disabled:
            until_ns = None if failure.retry_s is None else self._clock() + round(failure.retry_s * 1e9)
            with self._lock:
                self._disabled[failure.dnn] = failure.reason or failure.message, until_ns
        call_and_log_errors(self._callbacks.on_failure, failure)

    def enabled(self, dnn: str) -> None:
        """A disabled DNN accepts frames again."""
        with self._lock:
            self._disabled.pop(dnn, None)

    # -- settings and queries

    def set_deadline(self, dnn: str, deadline_ns: int | None) -> None:
        """Set the deadline of a DNN, from arrival, for results from now on; None: no deadline."""
        with self._lock:
            self._deadlines_ns[dnn] = deadline_ns

    def set_devices(self, devices: Mapping[str, int]) -> None:
        """Set the number of devices of DNNs that have several."""
        with self._lock:
            self._devices = dict(devices)

    def computed(self, number: int, dnn: str) -> None:
        """The DNN has computed a frame, whose result waits for results of earlier frames."""
        with self._lock:
            entry = self._open.get(number)
            if entry is not None:
                entry.computed.add(dnn)

    def handed_ns(self, dnn_camera: DnnCamera) -> int | None:
        """When the oldest frame of the camera that the DNN has not computed yet was handed to the engine.

        None: at least one device of the DNN has no frame of the camera.
        """
        dnn, camera = dnn_camera
        with self._lock:
            handed = [
                entry.handed_ns
                for entry in self._open.values()  # oldest first
                if dnn in entry.unanswered and dnn not in entry.computed and entry.frame.camera == camera
            ]
            return handed[0] if len(handed) >= self._devices.get(dnn, 1) else None

    def enabled_dnns(self, camera: str) -> tuple[str, ...]:
        """The DNNs of the camera that are not disabled."""
        return tuple(dnn for dnn in self.dnns_of(camera) if self._disabled_reason(dnn) is None)

    def statistics(self) -> Statistics:
        """A snapshot of the counts and percentiles."""
        now_ns = self._clock()
        with self._lock:
            recorders = {dnn_camera: recorder.copy() for dnn_camera, recorder in self._recorders.items()}
        disabled = {dnn: reason for dnn in self.cameras_by_dnn if (reason := self._disabled_reason(dnn)) is not None}
        return Statistics(
            {dnn_camera: recorder.snapshot(now_ns) for dnn_camera, recorder in recorders.items()}, disabled
        )

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until every frame is settled and every callback has returned; False on timeout."""
        with self._lock:
            return self._settled.wait_for(lambda: not self._open and not self._callbacks_running, timeout_s)

    # -- internal

    def _disabled_reason(self, dnn: str) -> str | None:
        """None: the DNN is enabled, or due for a retry."""
        with self._lock:
            reason, until_ns = self._disabled.get(dnn, (None, None))
            if until_ns is not None and self._clock() >= until_ns:
                del self._disabled[dnn]
                return None
            return reason

    def _answer(self, number: int, dnn: str, timing: Timing | None) -> _OpenFrame | None:
        with self._lock:
            entry = self._open.get(number)
            if entry is None or dnn not in entry.unanswered:
                return None
            entry.unanswered.discard(dnn)
            if not entry.unanswered:
                del self._open[number]
            self._callbacks_running += 1
        self._on_answered(dnn, entry.frame.camera, entry.handed_ns, timing)
        return entry

    def _release(self, entry: _OpenFrame) -> None:
        with self._lock:
            self._callbacks_running -= 1
            entry.users -= 1
            last = not entry.users
            self._settled.notify_all()
        if last:
            entry.buffer.release()

    def _count_drop(self, drop: Drop) -> None:
        with self._lock:
            self._recorders[drop.dnn, drop.frame.camera].dropped[drop.reason] += 1
        call_and_log_errors(self._callbacks.on_drop, drop)
