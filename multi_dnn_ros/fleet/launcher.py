"""The interface for starting the ranks of the jobs, on this machine or on the hosts of a cluster."""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.messages import Command, Ended, Failed, Message
from multi_dnn_ros.fleet.rank_process import RankSetup
from multi_dnn_ros.planning.batch_units import Unit

#: The main function of a rank's process; tests replace it.
RankMain = Callable[[RankSetup, "Connection[Any, Any]"], None]
#: Commands kept for a rank after which it hangs: those of days.
_MAX_UNSENT = 10_000


@dataclass(frozen=True)
class UnitChange:
    """A unit was lost, or can be used again. text: for the log."""

    unit: int
    usable: bool
    text: str


class RankHandle(ABC):
    """A rank, from the supervisor's side. connection: to the rank; None: not connected yet."""

    connection: Connection[Any, Any] | None = None
    _ended = False

    def __init__(self) -> None:
        self._unsent: deque[Command] = deque()

    @property
    @abstractmethod
    def pid(self) -> int:
        """Process id on the rank's host."""

    @abstractmethod
    def ending(self) -> str | None:
        """What is wrong with the process: it could not be started, does not connect, ended before it connected or with
        an exit code other than 0, or runs without its connection. None: nothing is wrong, or it is not known yet.
        """

    @property
    def awaits_ending(self) -> bool:
        """Whether the rank has closed its connection, but how its process has ended is not known yet."""
        return False

    @abstractmethod
    def alive(self) -> bool:
        """Whether the process is running."""

    @abstractmethod
    def join(self, timeout_s: float) -> None:
        """Wait until the process has ended."""

    @abstractmethod
    def kill(self) -> None:
        """Kill the process."""

    def send(self, command: Command) -> None:
        """Send a command, or keep it for :meth:`receive` to send: a connection holds some 70 commands that a rank
        has not read, because it loads its data or hangs, and the supervisor must not wait for it. If the rank has
        ended, :meth:`receive` reports it, not this method.
        """
        self._unsent.append(command)
        self._send_kept()

    def _send_kept(self) -> None:
        if self.connection is None or self.connection.closed:
            self._unsent.clear()
            return
        with suppress(OSError):
            while self._unsent and _can_send(self.connection):
                self.connection.send(self._unsent.popleft())

    def receive(self) -> list[Message]:
        """New messages. A process that ends without a final message yields a Failed. Closes the connection if the rank
        has closed it.
        """
        found: list[Message] = []
        if self._unsent:
            self._send_kept()
        try:
            while self.connection is not None and not self.connection.closed and self.connection.poll():
                found.append(self.connection.recv())
        except (EOFError, OSError):
            self.close()
        self._ended = self._ended or any(isinstance(message, Failed | Ended) for message in found)
        hangs = "does not read its commands: it hangs" if len(self._unsent) >= _MAX_UNSENT else None
        if not self._ended and (text := self.ending() or hangs) is not None:
            self._ended = True
            found.append(Failed(text, False, False))
        return found

    def close(self) -> None:
        """Close the connection, upon which the rank ends."""
        if self.connection is not None:
            self.connection.close()


def _can_send(connection: Connection[Any, Any]) -> bool:
    """Whether a command can be sent without waiting. Raises OSError."""
    poll = select.poll()  # not select(), whose descriptors must be below 1024
    poll.register(connection.fileno(), select.POLLOUT)
    return bool(poll.poll(0))


class Launcher(Protocol):
    """units: where ranks run. names: names of the units for messages. usable: whether each unit can be used now."""

    units: tuple[Unit, ...]

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def usable(self) -> Sequence[bool]: ...

    def start(self, job: FleetJob, unit: int, folder: Path, prefix: str, rank_main: RankMain) -> RankHandle:
        """Start the rank of a job on a unit. folder: the job's folder. prefix: that of the rank's keys in the TCPStore,
        unique per start.
        """

    def poll(self) -> list[UnitChange]:
        """What changed since the last call. Called about ten times per second; also measures the use of the units."""

    def take_use(self) -> list[float]:
        """Use 0..1 of each unit since the last call."""
