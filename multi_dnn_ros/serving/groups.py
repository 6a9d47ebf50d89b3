"""What supervision knows of engine processes and of the groups of DNNs that they serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


class Phase(Enum):
    """How far an engine process is."""

    STARTING = "starting"  # imports
    READY = "imports done"
    CONFIGURING = "configuring"
    CONFIGURED = "configured"
    SERVING = "serving"
    STOPPING = "stopping"  # finishes its frames, then it is CONFIGURED again
    LEAVING = "leaving"  # finishes its frames, then it is ended
    KILLED = "killed"  # not reaped yet


@dataclass(frozen=True)
class Limits:
    """Times of supervision, seconds.

    fault_window_s: parameter of that name. restart_s: pauses before a group gets a process again, by how often it was
    lost before without serving for fault_window_s; the last one holds from then on. retry_s: likewise, until a disabled
    DNN is tried again.
    """

    fault_window_s: float = 60.0
    restart_s: tuple[float, ...] = (0.0, 1.0, 5.0, 30.0, 60.0)
    retry_s: tuple[float, ...] = (10.0, 60.0, 600.0)


@dataclass
class Backoff:
    """Growing pauses. pauses_s: seconds, by the number of failures before."""

    pauses_s: tuple[float, ...]
    count: int = 0

    def failed(self) -> int:
        """One more failure; nanoseconds to wait."""
        pause_s = self.pauses_s[min(self.count, len(self.pauses_s) - 1)]
        self.count += 1
        return round(pause_s * 1e9)

    def reset(self) -> None:
        """It works again."""
        self.count = 0


@dataclass
class Member:
    """An engine process. dnns: that it is, or is being, configured for. since_ns: of the phase."""

    key: int
    phase: Phase
    since_ns: int
    dnns: tuple[str, ...] = ()

    def covers(self, dnns: Iterable[str]) -> bool:
        """Whether it is, or will be, configured for all of these."""
        return set(dnns) <= set(self.dnns)


@dataclass(frozen=True)
class Loss:
    """A group lost its process. cause: the newest. at_ns: since when nobody serves. answer_ns: when the lost process
    last answered, None: never. gap_ms: from then to the first answer of the new process; None: there was none yet."""

    cause: str
    at_ns: int
    answer_ns: int | None
    gap_ms: float | None = None

    @property
    def begun_ns(self) -> int:
        """What the gap counts from."""
        return self.at_ns if self.answer_ns is None else self.answer_ns

    def restored_s(self, now_ns: int) -> float | None:
        """How long ago the new process gave its first answer; None: it has not."""
        return None if self.gap_ms is None else (now_ns - self.begun_ns) / 1e9 - self.gap_ms / 1e3


@dataclass
class Group:
    """DNNs that one engine process serves.

    own: one DNN under suspicion, in a process of its own. sheltered: until it has one, the process of the common group
    serves it. process: serves, or is ready to. coming: being prepared to take over. next_try_ns: no process is prepared
    before. faults: times of those of the last fault_window_s. disabled: why the DNN gets no frames until the next try.
    """

    dnns: tuple[str, ...]
    restart: Backoff
    tries: Backoff
    own: bool = False
    sheltered: bool = False
    process: int | None = None
    coming: int | None = None
    next_try_ns: int = 0
    faults: list[int] = field(default_factory=list)
    disabled: str | None = None
    served_since_ns: int | None = None
    restarts: int = 0
    loss: Loss | None = None


@dataclass
class Spare:
    """A process that is prepared beside those that serve: the standby, or the one that merges groups.

    key: None: there is none. reason: why not.
    """

    restart: Backoff
    key: int | None = None
    next_try_ns: int = 0
    failed_ns: int | None = None
    reason: str = ""

    def used(self, now_ns: int, window_ns: int) -> None:
        """It is gone (into service, or lost); pauses grow when that happens often."""
        if self.failed_ns is not None and now_ns - self.failed_ns >= window_ns:
            self.restart.reset()
        self.key = None
        self.failed_ns = now_ns
        self.next_try_ns = now_ns + self.restart.failed()


# -- what supervision wants done


@dataclass(frozen=True)
class Spawn:
    """A new engine process that is known by this key from now on."""

    key: int


@dataclass(frozen=True)
class Configure:
    """in_background: others serve meanwhile."""

    key: int
    dnns: tuple[str, ...]
    in_background: bool


@dataclass(frozen=True)
class Begin:
    """Let it serve."""

    key: int


@dataclass(frozen=True)
class Finish:
    """Let it finish its frames; answered by `stopped`."""

    key: int


@dataclass(frozen=True)
class Kill:
    key: int
    cause: str


@dataclass(frozen=True)
class Disable:
    """No frames for this DNN until Enable."""

    dnn: str
    message: str


@dataclass(frozen=True)
class Enable:
    dnn: str


@dataclass(frozen=True)
class Say:
    """A line for the log. level: as in :mod:`logging`."""

    level: int
    text: str


Action = Spawn | Configure | Begin | Finish | Kill | Disable | Enable | Say
