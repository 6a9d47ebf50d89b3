"""Detects engine processes that hang, from their shared status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from multi_dnn_ros.serving.supervision.states import HEARTBEAT_PHASES, Phase, ProcessState


class Status(Protocol):
    """The part of :class:`multi_dnn_ros.serving.shared_status.SharedStatus` that is read here."""

    def last_heartbeat_ns(self) -> int: ...

    def image_since_ns(self) -> int | None: ...

    def running_jobs(self) -> dict[str, int]: ...


_LOADING_PHASES = (Phase.STARTING, Phase.READY, Phase.CONFIGURING)
#: A longer interval between two calls of `tick` means that the supervising process itself did not run.
_MAX_TICK_INTERVAL_NS = 1_000_000_000
#: Share of heartbeat_timeout_s after which a silent standby is no longer used.
_STANDBY_SHARE = 0.5


@dataclass(frozen=True)
class ProcessFault:
    """A process hangs or cannot continue. cause: text for the log. running: DNNs with a running job; empty: unknown."""

    cause: str
    running: tuple[str, ...] = ()


class HangDetector:
    """Finds processes without a heartbeat, or with a job or an image whose decoding takes too long.

    Only time in which the detector itself ran counts, so that no engine process is reported as hanging after the
    machine was suspended or the node's process was stopped.

    job_timeout_s, heartbeat_timeout_s: the parameters of the same names. clock: nanoseconds, monotonic. is_stopped:
    whether a process, given its id, was stopped by a signal.
    """

    def __init__(
        self,
        job_timeout_s: float,
        heartbeat_timeout_s: float,
        clock: Callable[[], int],
        is_stopped: Callable[[int], bool] = lambda pid: is_stopped(pid),
    ) -> None:
        self._job_timeout_s = job_timeout_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._clock = clock
        self._is_stopped = is_stopped
        self._last_tick_ns = self._running_since_ns = clock()
        self._stopped_since_ns: dict[int, int] = {}

    def tick(self) -> None:
        """Call before each round of checks, several times per second."""
        now_ns = self._clock()
        if now_ns - self._last_tick_ns > _MAX_TICK_INTERVAL_NS:
            self._running_since_ns = now_ns
            self._stopped_since_ns.clear()
        self._last_tick_ns = now_ns

    def check(self, process: ProcessState, pid: int, status: Status) -> ProcessFault | None:
        """The fault of a process that hangs, otherwise None."""
        if process.phase in _LOADING_PHASES:
            return self._check_loading(pid)
        if process.phase not in HEARTBEAT_PHASES:
            return None
        now_ns = self._clock()
        running = status.running_jobs()
        silent_s = self._silent_s(process, status)
        if silent_s > self._heartbeat_timeout_s:
            return ProcessFault(
                f"hung: no heartbeat for {silent_s:.1f} s (parameter heartbeat_timeout_s: "
                f"{self._heartbeat_timeout_s:g})",
                tuple(running),
            )
        late = tuple(
            dnn
            for dnn, started_ns in running.items()
            if (now_ns - max(started_ns, self._running_since_ns)) / 1e9 > self._job_timeout_s
        )
        if late:
            return ProcessFault(
                f"hung: a job of DNN {', '.join(late)} takes longer than {self._job_timeout_s:g} s (parameter "
                "job_timeout_s)",
                late,
            )
        image_ns = status.image_since_ns()
        if image_ns is not None and (now_ns - max(image_ns, self._running_since_ns)) / 1e9 > self._job_timeout_s:
            return ProcessFault(
                f"hung: decoding an image takes longer than {self._job_timeout_s:g} s (parameter job_timeout_s)",
                tuple(running),
            )
        return None

    def check_standby(self, process: ProcessState, pid: int, status: Status) -> ProcessFault | None:
        """The fault of a standby that should not take over now, because it probably hangs, otherwise None.

        What stopped the lost process may have stopped the standby, too, which :meth:`check` notices only later.
        """
        if self._is_stopped(pid):
            return ProcessFault("stopped by a signal when it had to take over")
        if process.phase not in HEARTBEAT_PHASES:
            return None
        silent_s = self._silent_s(process, status)
        if silent_s <= _STANDBY_SHARE * self._heartbeat_timeout_s:
            return None
        return ProcessFault(
            f"hung: no heartbeat for {silent_s:.1f} s when it had to take over ({_STANDBY_SHARE:.0%} of parameter "
            f"heartbeat_timeout_s: {self._heartbeat_timeout_s:g})"
        )

    def _silent_s(self, process: ProcessState, status: Status) -> float:
        """Time without a heartbeat while one was required and this process ran."""
        since_ns = max(status.last_heartbeat_ns(), self._running_since_ns, process.heartbeat_since_ns)
        return (self._clock() - since_ns) / 1e9

    def _check_loading(self, pid: int) -> ProcessFault | None:
        """Loading has no time limit, but a process that was stopped by a signal makes no progress."""
        now_ns = self._clock()
        if not self._is_stopped(pid):
            self._stopped_since_ns.pop(pid, None)
            return None
        since_ns = self._stopped_since_ns.setdefault(pid, now_ns)
        if (now_ns - since_ns) / 1e9 <= self._heartbeat_timeout_s:
            return None
        del self._stopped_since_ns[pid]
        return ProcessFault(f"stopped by a signal for {self._heartbeat_timeout_s:g} s (parameter heartbeat_timeout_s)")


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP), not by a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] == ["T"]
