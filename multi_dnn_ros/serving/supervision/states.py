"""The state of each engine process, and of each group of DNNs that one process serves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


class Phase(Enum):
    """Progress of an engine process."""

    STARTING = "starting"  # imports its modules
    READY = "imports done"
    CONFIGURING = "configuring"
    CONFIGURED = "configured"
    SERVING = "serving"
    STOPPING = "stopping"  # finishes its frames, then it is CONFIGURED again
    DRAINING = "draining"  # finishes its frames, then it is killed
    KILLED = "killed"  # not reaped yet


#: Phases of a process that is not bound to particular DNNs yet.
UNBOUND_PHASES = (Phase.STARTING, Phase.READY)
#: Phases in which a DNN of the process may be the cause of its loss.
COMPUTING_PHASES = (Phase.SERVING, Phase.STOPPING)
#: Phases in which a heartbeat is required, because nothing is imported or compiled.
HEARTBEAT_PHASES = (Phase.CONFIGURED, Phase.SERVING, Phase.STOPPING, Phase.DRAINING)
#: Phases in which a process may stay for a long time.
STEADY_PHASES = (Phase.READY, Phase.CONFIGURED, Phase.SERVING)


@dataclass(frozen=True)
class SupervisionTimes:
    """Times of supervision, seconds.

    fault_window_s: the parameter of that name. restart_s: pause before a group gets a new process, by the number of
    earlier losses without fault_window_s of service in between; the last value applies to all further losses.
    retry_s: likewise, pause before a disabled DNN is retried. prepare_ahead_s: time before the retry at which the
    preparation of its process begins.
    """

    fault_window_s: float = 60.0
    restart_s: tuple[float, ...] = (0.0, 1.0, 5.0, 30.0, 60.0)
    retry_s: tuple[float, ...] = (10.0, 60.0, 600.0)
    prepare_ahead_s: float = 30.0


@dataclass
class Backoff:
    """Growing pauses. pauses_s: seconds, by the number of earlier failures."""

    pauses_s: tuple[float, ...]
    failures: int = 0

    def failed(self) -> int:
        """Count a failure; return the nanoseconds to wait."""
        pause_s = self.pauses_s[min(self.failures, len(self.pauses_s) - 1)]
        self.failures += 1
        return round(pause_s * 1e9)

    def reset(self) -> None:
        """Reset the count of failures."""
        self.failures = 0


@dataclass
class ProcessState:
    """An engine process. dnns: the DNNs that it is, or is being, configured for. since_ns: when `phase` began.

    heartbeat_since_ns: since when a heartbeat is required. Entering another phase that also requires one leaves it.
    """

    key: int
    phase: Phase
    since_ns: int
    dnns: tuple[str, ...] = ()
    heartbeat_since_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self.heartbeat_since_ns = self.since_ns

    def enter(self, phase: Phase, now_ns: int) -> None:
        """Begin a phase."""
        if self.phase not in HEARTBEAT_PHASES:
            self.heartbeat_since_ns = now_ns
        self.phase, self.since_ns = phase, now_ns

    def covers(self, dnns: Iterable[str]) -> bool:
        """Whether it is, or will be, configured for all of these DNNs."""
        return set(dnns) <= set(self.dnns)


@dataclass(frozen=True)
class Loss:
    """A group lost its process.

    cause: of the most recent loss. at_ns: since when no process serves the group. last_result_ns: time of the lost
    process's last result; None: it had none. gap_ms: time from that result (or `at_ns`) to the first result of the new
    process; None: there is none yet.
    """

    cause: str
    at_ns: int
    last_result_ns: int | None
    gap_ms: float | None = None

    @property
    def gap_start_ns(self) -> int:
        """Start of the gap."""
        return self.at_ns if self.last_result_ns is None else self.last_result_ns

    def restored_s(self, now_ns: int) -> float | None:
        """Seconds since the first result of the new process; None: there is none yet."""
        return None if self.gap_ms is None else (now_ns - self.gap_start_ns) / 1e9 - self.gap_ms / 1e3


@dataclass
class Group:
    """DNNs that one engine process serves.

    restart: pauses before the group gets a new process. retry: pauses before its disabled DNN is retried.
    isolated: one suspected DNN in a process of its own.
    served_by_common: the process of the common group serves this suspected DNN until its own process is ready.
    process: key of the process that serves the group, or can serve it. replacement: key of the process that is being
    prepared for it.
    next_attempt_ns: no process is prepared before that time. retry_ns: its disabled DNN is not served before that time.
    faults: times of the faults within the last fault_window_s.
    disabled: why its DNN is disabled until a process serves it again; None: it is not.
    """

    dnns: tuple[str, ...]
    restart: Backoff
    retry: Backoff
    isolated: bool = False
    served_by_common: bool = False
    process: int | None = None
    replacement: int | None = None
    next_attempt_ns: int = 0
    retry_ns: int = 0
    faults: list[int] = field(default_factory=list)
    disabled: str | None = None
    served_since_ns: int | None = None
    restarts: int = 0
    loss: Loss | None = None


@dataclass
class SpareProcess:
    """A process that is prepared while others serve: the standby, or the common process for merged groups.

    key: key of the process; None: there is none. reason: why there is none.
    """

    restart: Backoff
    key: int | None = None
    next_attempt_ns: int = 0
    removed_ns: int | None = None
    reason: str = ""

    def removed(self, now_ns: int, window_ns: int) -> None:
        """The process has entered service or was lost; frequent removals make the pause before the next one longer."""
        if self.removed_ns is not None and now_ns - self.removed_ns >= window_ns:
            self.restart.reset()
        self.key = None
        self.removed_ns = now_ns
        self.next_attempt_ns = now_ns + self.restart.failed()
