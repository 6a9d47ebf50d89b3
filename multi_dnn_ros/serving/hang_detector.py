"""Detects engine processes that hang, from the state that they share."""

from __future__ import annotations

import os
from collections.abc import Callable

from multi_dnn_ros.serving.supervised_engine import HEARTBEAT_PHASES, SupervisedEngine

#: A longer interval between two calls of `tick` means that the supervising process itself did not run.
_MAX_TICK_INTERVAL_NS = 1_000_000_000


class HangDetector:
    """Finds configured engine processes without a heartbeat, or with a job or an image whose decoding takes too long.

    Only time in which the detector itself ran counts, so that no engine process is reported as hanging after the
    machine was suspended or the node's process was stopped. An engine in the node's process is never reported.

    job_timeout_s, heartbeat_timeout_s: the parameters of the same names. clock: nanoseconds, monotonic.
    """

    def __init__(self, job_timeout_s: float, heartbeat_timeout_s: float, clock: Callable[[], int]) -> None:
        self._job_timeout_s = job_timeout_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._clock = clock
        self._last_tick_ns = self._running_since_ns = clock()

    def tick(self) -> None:
        """Call before each round of checks, several times per second."""
        now_ns = self._clock()
        if now_ns - self._last_tick_ns > _MAX_TICK_INTERVAL_NS:
            self._running_since_ns = now_ns
        self._last_tick_ns = now_ns

    def fault(self, engine: SupervisedEngine) -> str:
        """Why an engine counts as hanging; empty: it does not. Loading has no time limit."""
        if engine.pid == os.getpid() or engine.phase not in HEARTBEAT_PHASES:
            return ""
        state = engine.state
        silent_s = self._elapsed_s(max(state.heartbeat_ns(), engine.heartbeat_since_ns))
        if silent_s > self._heartbeat_timeout_s:
            limit = f"(parameter heartbeat_timeout_s: {self._heartbeat_timeout_s:g})"
            return f"hung: no heartbeat for {silent_s:.1f} s {limit}"
        limit = f"takes longer than {self._job_timeout_s:g} s (parameter job_timeout_s)"
        late = [dnn for dnn, at in state.running_jobs().items() if self._elapsed_s(at) > self._job_timeout_s]
        if late:
            return f"hung: a job of DNN {', '.join(late)} {limit}"
        image_ns = state.image_ns()
        return (
            f"hung: decoding an image {limit}" if image_ns and self._elapsed_s(image_ns) > self._job_timeout_s else ""
        )

    def _elapsed_s(self, since_ns: int) -> float:
        """Time since then in which this process ran."""
        return (self._clock() - max(since_ns, self._running_since_ns)) / 1e9
