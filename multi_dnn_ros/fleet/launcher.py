"""The interface for starting the ranks of the jobs, on this machine or on the hosts of a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
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

#: What a rank runs; tests replace it.
RankMain = Callable[[RankSetup, "Connection[Any, Any]"], None]


@dataclass(frozen=True)
class UnitChange:
    """A unit was lost, or can be used again. text: for the log."""

    unit: int
    usable: bool
    text: str


class RankHandle(ABC):
    """A rank, from the supervisor's side. end: the connection to it; None: not connected yet."""

    end: Connection[Any, Any] | None = None
    _ended = False

    @property
    @abstractmethod
    def pid(self) -> int:
        """Process id on the rank's host."""

    @abstractmethod
    def ending(self) -> str | None:
        """What is wrong with the process: it could not be started, does not connect, ended before it connected or with
        an exit code other than 0, or runs without its connection. None: nothing, or not known yet.
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
        """End the process at once."""

    def send(self, command: Command) -> None:
        """Pass a command on. That the rank has ended is reported by :meth:`receive`, not here."""
        if self.end is None or self.end.closed:
            return
        with suppress(OSError):
            self.end.send(command)

    def receive(self) -> list[Message]:
        """New messages. A process that ends without a final message yields a Failed. Closes the connection if the rank
        has closed it.
        """
        found: list[Message] = []
        try:
            while self.end is not None and not self.end.closed and self.end.poll():
                found.append(self.end.recv())
        except (EOFError, OSError):
            self.close()
        self._ended = self._ended or any(isinstance(message, Failed | Ended) for message in found)
        if not self._ended and (text := self.ending()) is not None:
            self._ended = True
            found.append(Failed(text, False, False))
        return found

    def close(self) -> None:
        """Close the connection, upon which the rank ends."""
        if self.end is not None:
            self.end.close()


class Launcher(Protocol):
    """units: where ranks run. names: of the units, for people. usable: whether each can be used now."""

    units: tuple[Unit, ...]

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def usable(self) -> Sequence[bool]: ...

    def start(self, job: FleetJob, unit: int, folder: Path, prefix: str, rank_main: RankMain) -> RankHandle:
        """Start the rank of a job on a unit. folder: of the job. prefix: of its keys in the store, unique per start."""

    def poll(self) -> list[UnitChange]:
        """What changed since the last call. Called about ten times per second; also measures the use of the units."""

    def take_use(self) -> list[float]:
        """Use 0..1 of each unit since the last call."""
