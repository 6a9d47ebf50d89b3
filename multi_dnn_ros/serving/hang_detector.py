"""Detects engine processes that hang, from the state that they share."""

from __future__ import annotations

import os
from collections.abc import Callable

import psutil

from multi_dnn_ros.serving.supervised_engine import HEARTBEAT_PHASES, Phase, SupervisedEngine

_LOADING_PHASES = (Phase.STARTING, Phase.READY, Phase.CONFIGURING)
#: A longer interval between two calls of `tick` means that the supervising process itself did not run.
_MAX_TICK_INTERVAL_NS = 1_000_000_000
#: Share of heartbeat_timeout_s after which a silent standby is no longer used.
_STANDBY_SHARE = 0.5


class HangDetector:
    """Finds engine processes without a heartbeat, or with a job or an image whose decoding takes too long.

    Only time in which the detector itself ran counts, so that no engine process is reported as hanging after the
    machine was suspended or the node's process was stopped. An engine in the node's process is never reported.

    job_timeout_s, heartbeat_timeout_s: the parameters of the same names. clock: nanoseconds, monotonic.
    """

    def __init__(self, job_timeout_s: float, heartbeat_timeout_s: float, clock: Callable[[], int]) -> None:
        self._job_timeout_s = job_timeout_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._clock = clock
        self._last_tick_ns = self._running_since_ns = clock()
        self._stopped_since_ns: dict[int, int] = {}

    def tick(self) -> None:
        """Call before each round of checks, several times per second."""
        now_ns = self._clock()
        if now_ns - self._last_tick_ns > _MAX_TICK_INTERVAL_NS:
            self._running_since_ns = now_ns
            self._stopped_since_ns.clear()
        self._last_tick_ns = now_ns

    def fault(self, engine: SupervisedEngine) -> str:
        """Why an engine counts as hanging; empty: it does not."""
        if engine.pid == os.getpid():
            return ""
        if engine.phase in _LOADING_PHASES:
            return self._loading_fault(engine.pid)
        if engine.phase not in HEARTBEAT_PHASES:
            return ""
        silent_s = self._silent_s(engine)
        if silent_s > self._heartbeat_timeout_s:
            limit = f"(parameter heartbeat_timeout_s: {self._heartbeat_timeout_s:g})"
            return f"hung: no heartbeat for {silent_s:.1f} s {limit}"
        late = [dnn for dnn, since_ns in engine.state.running_jobs().items() if self._is_late(since_ns)]
        limit = f"takes longer than {self._job_timeout_s:g} s (parameter job_timeout_s)"
        if late:
            return f"hung: a job of DNN {', '.join(late)} {limit}"
        image_ns = engine.state.image_ns()
        return f"hung: decoding an image {limit}" if image_ns and self._is_late(image_ns) else ""

    def standby_fault(self, engine: SupervisedEngine) -> str:
        """Why a standby should not take over now; empty: it can. What stopped the lost engine may have stopped the
        standby, too, which :meth:`fault` notices only later.
        """
        if engine.pid == os.getpid():
            return ""
        if is_stopped(engine.pid):
            return "stopped by a signal when it had to take over"
        silent_s = self._silent_s(engine)
        if engine.phase in HEARTBEAT_PHASES and silent_s > _STANDBY_SHARE * self._heartbeat_timeout_s:
            return f"hung: no heartbeat for {silent_s:.1f} s when it had to take over"
        return ""

    def _is_late(self, since_ns: int) -> bool:
        return (self._clock() - max(since_ns, self._running_since_ns)) / 1e9 > self._job_timeout_s

    def _silent_s(self, engine: SupervisedEngine) -> float:
        """Time without a heartbeat while one was required and this process ran."""
        since_ns = max(engine.state.heartbeat_ns(), self._running_since_ns, engine.heartbeat_since_ns)
        return (self._clock() - since_ns) / 1e9

    def _loading_fault(self, pid: int) -> str:
        """Loading has no time limit, but a process that was stopped by a signal makes no progress."""
        if not is_stopped(pid):
            self._stopped_since_ns.pop(pid, None)
            return ""
        since_ns = self._stopped_since_ns.setdefault(pid, self._clock())
        if (self._clock() - since_ns) / 1e9 <= self._heartbeat_timeout_s:
            return ""
        return f"stopped by a signal for {self._heartbeat_timeout_s:g} s (parameter heartbeat_timeout_s)"


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP), not by a debugger."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
