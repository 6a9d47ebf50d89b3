"""The ledger: every image that arrives is answered exactly once for each DNN, with a result or a drop and its reason.

It is in the node's process, because an engine may end at any moment. It alone counts frames, keeps their times, decides
which DNN gets which image (parameters `enable` and `max_rate_hz`), keeps the results of each DNN in the order of its
frames, and frees the memory of images. An image that does not go to a DNN counts as offered to it and is dropped at
once. So for each DNN and camera: offered = published + dropped + pending.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from multi_dnn_ros.engine.frame import Frame
from multi_dnn_ros.engine.reports import Callbacks, Failure, call_and_log_errors
from multi_dnn_ros.engine.task import Drop, DropReason, Result, Timing
from multi_dnn_ros.serving.shared_memory import Slot
from multi_dnn_ros.serving.statistics import DnnCameraStatistics, OpenFrame, Stream

SWITCHED_OFF_MESSAGE = "switched off (parameter enable)"
#: Of frames; unique in this process, because a late answer to one ledger must not be one to the next.
_NUMBERS = itertools.count(1)

Server = TypeVar("Server")


@dataclass
class DnnSettings:
    """What the ledger has to know about a DNN. cameras: whose images it processes.

    deadline_ns: from arrival; None: no deadline. enabled, max_rate_hz: the parameters; 0: no limit.
    """

    cameras: tuple[str, ...]
    deadline_ns: int | None = None
    enabled: bool = True
    max_rate_hz: float = 0.0


class Ledger:
    """Thread-safe, with one lock. Callbacks run in the thread that reports the event, without the lock.

    dnns: by name. clock: nanoseconds, monotonic. window_ns: window of percentiles and rates. on_answered: called with
    the camera after each answer to one of its frames; must neither block nor raise.
    """

    def __init__(
        self,
        dnns: Mapping[str, DnnSettings],
        callbacks: Callbacks,
        clock: Callable[[], int] = time.monotonic_ns,
        window_ns: int = 10_000_000_000,
        on_answered: Callable[[str], None] = lambda camera: None,
    ) -> None:
        self._settings = dict(dnns)
        self._callbacks = callbacks
        self._clock = clock
        self._window_ns = window_ns
        self._on_answered = on_answered
        self._lock = threading.RLock()  # lock the RLock directly; via the Condition it is 10x slower
        self._settled = threading.Condition(self._lock)
        self._frames: dict[int, OpenFrame] = {}
        self._pending = 0  # answers that are missing or whose callback is running
        self._disabled: dict[str, tuple[str, int | None]] = {}  # by DNN, the reason and the time of the retry
        self._streams = {(dnn, camera): Stream() for dnn, it in dnns.items() for camera in it.cameras}
        self._dnns: dict[str, tuple[str, ...]] = {}  # by camera
        for dnn, camera in self._streams:
            self._dnns[camera] = (*self._dnns.get(camera, ()), dnn)

    # -- images before they are handed to an engine

    def dnns_of(self, camera: str) -> tuple[str, ...]:
        """The DNNs that process the images of the camera."""
        return self._dnns.get(camera, ())

    def arrived(self, frame: Frame, also_for: Iterable[str] = ()) -> tuple[str, ...]:
        """An image arrived: count it as offered to every DNN of its camera. Returns the DNNs that it is for.

        also_for: DNNs that get it although their rate is limited, because it replaces an image that was for them.
        """
        found, refused = [], []
        with self._lock:
            for dnn in self._dnns.get(frame.camera, ()):
                settings, stream = self._settings[dnn], self._streams[dnn, frame.camera]
                stream.counts.offered += 1
                rate_hz = settings.max_rate_hz
                if not settings.enabled:
                    refused.append(Drop(dnn, frame, DropReason.SWITCHED_OFF, SWITCHED_OFF_MESSAGE))
                elif not rate_hz or stream.is_due(frame.received_ns, rate_hz) or dnn in also_for:
                    found.append(dnn)
                else:
                    refused.append(Drop(dnn, frame, DropReason.RATE_LIMITED, f"max_rate_hz is {rate_hz:g}"))
        for drop in refused:
            self._count_drop(drop)
        return tuple(found)

    def wanted_by(self, dnns: Iterable[str]) -> tuple[str, ...]:
        """Those of the DNNs that are neither switched off nor disabled."""
        with self._lock:
            return tuple(
                dnn
                for dnn in dnns
                if self._settings[dnn].enabled and (dnn not in self._disabled or self._disabled_reason(dnn) is None)
            )

    def lose(self, frame: Frame, dnns: Iterable[str], reason: DropReason, message: str) -> None:
        """Drop an image that was not handed to an engine, for the DNNs that it was for. A DNN that was switched off or
        disabled meanwhile has that as its reason, unless the image is bad.
        """
        for dnn in dnns:
            with self._lock:
                disabled = self._disabled_reason(dnn)
            drop = Drop(dnn, frame, reason, message)
            if not self._settings[dnn].enabled:
                drop = Drop(dnn, frame, DropReason.SWITCHED_OFF, SWITCHED_OFF_MESSAGE)
            elif disabled is not None and reason is not DropReason.BAD_IMAGE:
                drop = Drop(dnn, frame, DropReason.DISABLED, disabled)
            self._count_drop(drop)

    def next_start_ns(self, camera: str, dnns: Iterable[str]) -> int:
        """When the first of the DNNs is expected to be done with the oldest frame of the camera that it has; 0: one has
        none, or the time of its frames is not known yet.
        """
        with self._lock:
            return min((self._streams[dnn, camera].next_start_ns() for dnn in dnns), default=0)

    # -- frames that are handed to an engine

    def open(
        self, frame: Frame, buffer: Slot, dnns: Collection[str], route: Callable[[str], Server | None]
    ) -> tuple[int, dict[Server | None, list[str]]]:
        """An image is in `buffer`, for at least one DNN. Returns its number, and the DNNs by the engine to send it to.

        route: the engine of a DNN; None: it has none, and its answer must follow. Called with the lock: an engine that
        was routed to before is known to :meth:`is_reading`. The buffer is released when each DNN has answered and no
        engine reads it.
        """
        number, now_ns = next(_NUMBERS), self._clock()
        engines: dict[Server | None, list[str]] = {}
        readers: dict[str, object] = {}
        with self._lock:
            for dnn in dnns:
                engine = route(dnn)
                engines.setdefault(engine, []).append(dnn)
                if engine is not None:
                    readers[dnn] = engine
                self._streams[dnn, frame.camera].open[number] = now_ns
            self._frames[number] = OpenFrame(frame, buffer, set(dnns), readers, len(dnns) + len(readers))
            self._pending += len(dnns)
        return number, engines

    def is_reading(self, engine: object) -> bool:
        """Whether the engine has a frame that it has not answered."""
        with self._lock:
            return any(reader is engine for entry in self._frames.values() for reader in entry.readers.values())

    def buffer(self, number: int, dnn: str, engine: object) -> Slot | None:
        """The buffer of a frame; None if this engine has no such frame of the DNN."""
        with self._lock:
            entry = self._frames.get(number)
            return entry.buffer if entry is not None and entry.readers.get(dnn) is engine else None

    def result(self, number: int, dnn: str, output: Any, timing: Timing, engine: object = None) -> None:
        """A result of a DNN, which waits until other engines have answered its earlier frames of this camera. Ignored
        if the DNN has answered the frame. The engine does not use the buffer any more.
        """
        with self._lock:
            entry = self._answer(number, dnn, engine)
            if entry is None:
                return
            stream = self._streams[dnn, entry.frame.camera]
            stream.add_result(number, entry, Result(dnn, entry.frame, output, timing), engine)
        self._on_answered(entry.frame.camera)
        self._deliver(stream)

    def drop(self, number: int, dnn: str, reason: DropReason, message: str, engine: object = None) -> None:
        """A DNN dropped the frame; ignored if the DNN has answered it. engine: does not use the buffer any more; None:
        it may.
        """
        with self._lock:
            entry = self._answer(number, dnn, engine)
            if entry is None:
                return
            stream = self._streams[dnn, entry.frame.camera]
            del stream.open[number]
        self._count_drop(Drop(dnn, entry.frame, reason, message))
        self._finish(number, entry)
        self._on_answered(entry.frame.camera)
        self._deliver(stream)

    def engine_lost(self, engine: object, message: str, *, ended: bool = False) -> None:
        """Drop the frames that an engine has not answered, which it may still read; ended: it does not any more."""
        self.drop_unanswered(DropReason.ENGINE_LOST, message, lambda reader: reader is engine)
        if ended:
            with self._lock:
                for number, entry in list(self._frames.items()):
                    for dnn in [dnn for dnn, reader in entry.readers.items() if reader is engine]:
                        del entry.readers[dnn]
                        self._let_go(number, entry)

    def drop_unanswered(
        self, reason: DropReason, message: str, of: Callable[[object], bool] = lambda engine: True
    ) -> None:
        """Drop the frames that are not answered. of: only those of an engine for which it is true."""
        with self._lock:
            frames = self._frames.items()
            missing = [(number, dnn) for number, it in frames for dnn in it.unanswered if of(it.readers.get(dnn))]
        for number, dnn in missing:
            self.drop(number, dnn, reason, message)

    def failure(self, failure: Failure) -> None:
        """A DNN failed: frames were lost because of an error of the DNN."""
        if failure.disabled:
            until_ns = None if failure.retry_s is None else self._clock() + round(failure.retry_s * 1e9)
            with self._lock:
                self._disabled[failure.dnn] = failure.reason or failure.message, until_ns
        call_and_log_errors(self._callbacks.on_failure, failure)

    def enable(self, dnns: Iterable[str]) -> None:
        """Disabled DNNs accept frames again."""
        with self._lock:
            for dnn in dnns:
                self._disabled.pop(dnn, None)

    # -- settings and figures

    def update(self, dnn: str, **values: Any) -> None:
        """Change attributes of the :class:`DnnSettings` of a DNN."""
        with self._lock:
            for name, value in values.items():
                setattr(self._settings[dnn], name, value)
            for camera in self._settings[dnn].cameras:
                self._streams[dnn, camera].due_ns = None

    def switched_off(self) -> list[str]:
        """The DNNs whose parameter `enable` is false."""
        return [dnn for dnn, settings in self._settings.items() if not settings.enabled]

    def disabled(self) -> dict[str, str]:
        """For each disabled DNN, the reason."""
        with self._lock:
            return {dnn: reason for dnn in self._settings if (reason := self._disabled_reason(dnn)) is not None}

    def statistics(self) -> dict[tuple[str, str], DnnCameraStatistics]:
        """The counts and percentiles, by DNN and camera."""
        now_ns = self._clock()
        with self._lock:
            found = {
                pair: (replace(stream.counts, dropped=stream.counts.dropped.copy()), list(stream.samples))
                for pair, stream in self._streams.items()
            }
        for counts, samples in found.values():  # without the lock, because it takes milliseconds
            counts.summarize([(at, timing) for at, timing in samples if now_ns - at <= self._window_ns])
        return {pair: counts for pair, (counts, _) in found.items()}

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until every frame is answered and every callback has returned; False on timeout."""
        with self._lock:
            return self._settled.wait_for(lambda: not self._pending, timeout_s)

    # -- internal; those that get or return an entry are called with the lock

    def _disabled_reason(self, dnn: str) -> str | None:
        """None: the DNN is enabled, or due for a retry."""
        reason, until_ns = self._disabled.get(dnn, (None, None))
        if until_ns is not None and self._clock() >= until_ns:
            del self._disabled[dnn]
            return None
        return reason

    def _answer(self, number: int, dnn: str, engine: object) -> OpenFrame | None:
        """Note the answer to a frame. None: it is answered already. engine: reads the buffer no longer."""
        entry = self._frames.get(number)
        if entry is None:
            return None
        first = dnn in entry.unanswered
        entry.unanswered.discard(dnn)
        if engine is not None and entry.readers.get(dnn) is engine:
            del entry.readers[dnn]
            self._let_go(number, entry)
        return entry if first else None

    def _let_go(self, number: int, entry: OpenFrame) -> None:
        entry.holds -= 1
        if not entry.holds:
            del self._frames[number]
            entry.buffer.release()

    def _finish(self, number: int, entry: OpenFrame) -> None:
        """The callback for an answer has returned; called without the lock."""
        with self._lock:
            self._pending -= 1
            self._let_go(number, entry)
            if not self._pending:
                self._settled.notify_all()

    def _deliver(self, stream: Stream) -> None:
        """Call the callback for each result that need not wait; one thread per stream at a time."""
        while True:
            with self._lock:
                number = min(stream.results, default=None)
                if stream.delivering or number is None:
                    return
                if number != next(iter(stream.open)) and self._waits(stream, number):
                    return
                entry, result, _ = stream.results.pop(number)
                del stream.open[number]
                stream.delivering = True
            try:
                self._callbacks.on_result(result)
            except (Exception, SystemExit) as error:  # of the message function of another package
                text = f"{type(error).__name__}: {error}"
                self._count_drop(Drop(result.dnn, result.frame, DropReason.PUBLISH_ERROR, text))
            else:
                with self._lock:
                    deadline_ns = self._settings[result.dnn].deadline_ns
                    stream.count_result(result.timing, self._clock(), deadline_ns, self._window_ns)
            with self._lock:
                stream.delivering = False
            self._finish(number, entry)

    def _waits(self, stream: Stream, number: int) -> bool:
        """Whether another engine may still answer an earlier frame. The answers of one engine are in order."""
        _, result, engine = stream.results[number]
        earlier = (it for it in stream.open if it < number and it not in stream.results)
        return any(self._frames[it].readers.get(result.dnn) is not engine for it in earlier)

    def _count_drop(self, drop: Drop) -> None:
        with self._lock:
            self._streams[drop.dnn, drop.frame.camera].counts.dropped[drop.reason] += 1
        call_and_log_errors(self._callbacks.on_drop, drop)
