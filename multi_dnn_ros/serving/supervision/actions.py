"""The actions that the supervisor decides on. key: key of the engine process, see :class:`ProcessTable`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StartProcess:
    """Start an engine process and give it this key."""

    key: int


@dataclass(frozen=True)
class ConfigureProcess:
    """Configure a process for these DNNs. in_background: at low CPU priority, because other processes are serving.

    swap: with the new settings of the swap in preparation (:class:`Swapping`).
    """

    key: int
    dnns: tuple[str, ...]
    in_background: bool
    swap: bool = False


@dataclass(frozen=True)
class StartServing:
    """Make a configured process serve frames."""

    key: int


@dataclass(frozen=True)
class TakeOver:
    """Precedes StartServing: results of the process `key` wait until the process `previous` has answered its frames."""

    key: int
    previous: int


@dataclass(frozen=True)
class StopServing:
    """Make a process finish its frames and stop; the event `stopped` follows."""

    key: int


@dataclass(frozen=True)
class KillProcess:
    """Kill a process; the event `ended` follows. cause: text for the log and the drops."""

    key: int
    cause: str


@dataclass(frozen=True)
class DisableDnn:
    """Count the frames of this DNN as `disabled` until :class:`EnableDnn`."""

    dnn: str
    message: str


@dataclass(frozen=True)
class EnableDnn:
    """End :class:`DisableDnn`."""

    dnn: str


@dataclass(frozen=True)
class LogLine:
    """Log a line. level: as in :mod:`logging`."""

    level: int
    text: str


Action = (
    StartProcess
    | ConfigureProcess
    | TakeOver
    | StartServing
    | StopServing
    | KillProcess
    | DisableDnn
    | EnableDnn
    | LogLine
)
