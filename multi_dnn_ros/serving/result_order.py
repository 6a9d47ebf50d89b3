"""Passes on the results of a DNN with several devices in the order of its frames."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from multi_dnn_ros.engine.statistics import DnnCamera
from multi_dnn_ros.engine.task import DropReason, Timing
from multi_dnn_ros.serving.accounts import Accounts


@dataclass
class _Entry:
    """A frame that the DNN has not answered, or whose result waits for results of earlier frames.

    result: output and timing; None: there is none yet. since_ns: when the result arrived.
    """

    number: int
    dnn_camera: DnnCamera
    result: tuple[Any, Timing] | None = None
    since_ns: int = 0


@dataclass
class _Frames:
    """Frames of one DNN and camera. entries: in frame order. publishing: whether a thread is passing on results."""

    entries: list[_Entry] = field(default_factory=list)
    publishing: bool = False


class ResultOrder:
    """Thread-safe; results are passed on by the thread that reports one, or by the thread that checks
    how long they have waited.

    accounts: receive the results. hold_ns: how long a result waits for earlier frames, which are then dropped as
    out_of_order.
    """

    def __init__(self, accounts: Accounts, hold_ns: int) -> None:
        self._accounts = accounts
        self._hold_ns = hold_ns
        self._changed = threading.Condition()
        self._frames: dict[DnnCamera, _Frames] = {}
        self._entries: dict[tuple[int, str], _Entry] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="result order", daemon=True)
        self._thread.start()

    def expect(self, number: int, dnn: str, camera: str) -> None:
        """A frame is being handed to a device. Call this for the frames of a camera in their order."""
        entry = _Entry(number, (dnn, camera))
        with self._changed:
            self._entries[number, dnn] = entry
            self._frames.setdefault(entry.dnn_camera, _Frames()).entries.append(entry)

    def result(self, number: int, dnn: str, output: Any, timing: Timing) -> None:
        """A result has arrived; ignored if the frame was dropped already."""
        with self._changed:
            entry = self._entries.get((number, dnn))
            if entry is None:
                return
            entry.result, entry.since_ns = (output, timing), time.monotonic_ns()
            waits = self._frames[entry.dnn_camera].entries[0] is not entry
            self._changed.notify()
        if waits:
            self._accounts.computed(number, dnn)
        self._pass_on(entry.dnn_camera)

    def drop(self, number: int, dnn: str, reason: DropReason, message: str) -> None:
        """A frame was dropped; ignored if it was dropped already."""
        entry = self._remove(number, dnn)
        if entry is not None:
            self._accounts.drop(number, dnn, reason, message)
            self._pass_on(entry.dnn_camera)

    def close(self) -> None:
        """No more results arrive: pass on the waiting ones, in their order."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            missing = [entry for entry in self._entries.values() if entry.result is None]
        self._thread.join()
        for entry in missing:
            self._remove(entry.number, entry.dnn_camera[0])
        for dnn_camera in list(self._frames):
            self._pass_on(dnn_camera)

    def _remove(self, number: int, dnn: str) -> _Entry | None:
        """Remove a frame without a result."""
        with self._changed:
            entry = self._entries.get((number, dnn))
            if entry is None or entry.result is not None:
                return None
            del self._entries[number, dnn]
            self._frames[entry.dnn_camera].entries.remove(entry)
            return entry

    def _pass_on(self, dnn_camera: DnnCamera) -> None:
        """Pass on the results at the head; returns at once if another thread is doing so."""
        frames = self._frames[dnn_camera]
        with self._changed:
            if frames.publishing:
                return
            frames.publishing = True
        try:
            while True:
                with self._changed:
                    entry = frames.entries[0] if frames.entries else None
                    if entry is None or entry.result is None:
                        frames.publishing = False
                        return
                    del frames.entries[0]
                    del self._entries[entry.number, dnn_camera[0]]
                self._accounts.result(entry.number, dnn_camera[0], *entry.result)
        except BaseException:
            frames.publishing = False
            raise

    # -- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                late, due_ns = self._overdue()
                while not late and not self._closed:
                    self._changed.wait(None if due_ns is None else max(0, due_ns - time.monotonic_ns()) / 1e9)
                    late, due_ns = self._overdue()
                if self._closed:
                    return
            for entry in late:
                message = f"no result {self._hold_ns / 1e6:g} ms after that of a later frame (parameter reorder_ms)"
                self.drop(entry.number, entry.dnn_camera[0], DropReason.OUT_OF_ORDER, message)

    def _overdue(self) -> tuple[list[_Entry], int | None]:
        """The frames for which later results have waited too long, and the time when the next wait becomes too long.

        The caller holds the lock.
        """
        now_ns, late, due = time.monotonic_ns(), [], []
        for frames in self._frames.values():
            missing: list[_Entry] = []
            passed = 0  # number of missing frames before the latest result that has waited too long
            for entry in frames.entries:
                if entry.result is None:
                    missing.append(entry)
                elif not missing:
                    continue  # it is being passed on
                elif entry.since_ns + self._hold_ns <= now_ns:
                    passed = len(missing)
                else:
                    due.append(entry.since_ns + self._hold_ns)
            late += missing[:passed]
        return late, min(due, default=None)
