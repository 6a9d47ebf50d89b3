"""A launcher whose ranks compute nothing: they answer commands at once, and fail when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.launcher import RankHandle, RankMain, UnitChange
from multi_dnn_ros.fleet.messages import Busy, Command, Ended, Failed, Message, Paused, Ready, Report
from multi_dnn_ros.planning.batch_units import Unit

_STEPS = 1000


class SimulatedRank(RankHandle):
    """unit: number of its unit. failed: called when the supervisor receives a failure of this rank. busy: it sends this
    message, and then nothing.
    """

    def __init__(self, unit: int) -> None:
        self.failed: Callable[[], None] = lambda: None
        self.unit = unit
        self.busy: Busy | None = None
        self._messages: list[Message] = [Ready(0)]
        self._sent: Busy | None = None
        self._report: Report | None = None  # received again and again while the job trains
        self._ending, self._unknown_for = "", 0

    @property
    def pid(self) -> int:
        return 1

    def ending(self) -> str | None:
        return None

    @property
    def awaits_ending(self) -> bool:
        return self._unknown_for > 0

    def alive(self) -> bool:
        return True

    def join(self, timeout_s: float) -> None:
        pass

    def kill(self) -> None:
        pass

    def send(self, command: Command) -> None:
        self._report = None
        if not command.active or command.active[0] != self.unit:
            return
        if command.stop:
            self._messages.append(Ended(False, 10))
        elif command.pause:
            self._messages.append(Paused(command.number, 10, _STEPS))
        else:
            self._report = Report(command.number, 10, _STEPS, 10, 0.1, 1.0)

    def put(self, message: Message) -> None:
        """Let the supervisor receive this message."""
        self._messages.append(message)

    def fail(self, text: str, failed: Callable[[], None]) -> None:
        """End with an error. failed: see the class."""
        self._report = None
        self._messages.append(Failed(text, False, False))
        self.failed = failed

    def end_later(self, text: str, unknown_for: int) -> None:
        """End without a message. unknown_for: calls of receive() until it is known how the process has ended."""
        self._report = None
        self._ending, self._unknown_for = text, unknown_for

    def receive(self) -> list[Message]:
        sent, self._sent = self._sent, self.busy
        if self.busy is not None:
            return [] if sent == self.busy else [self.busy]
        if self._unknown_for:
            self._unknown_for -= 1
            if not self._unknown_for:
                self._messages.append(Failed(self._ending, False, False))
        found, self._messages = self._messages, []
        if self._report is not None:
            found.append(self._report)
        if any(isinstance(message, Failed) for message in found):
            self.failed()
        return found


class SimulatedLauncher:
    """ranks: the last rank that was started, by job and unit. prefixes: those of all starts, by unit."""

    def __init__(self, units: Sequence[Unit], usable: Sequence[bool] | None = None) -> None:
        self.units = tuple(units)
        self.names: Sequence[str] = [unit.name for unit in units]
        self.usable: list[bool] = list(usable or [True] * len(units))
        self.ranks: dict[tuple[str, int], SimulatedRank] = {}
        self.prefixes: dict[int, list[str]] = {}
        self._changes: list[UnitChange] = []

    def change(self, unit: int, usable: bool, text: str) -> None:
        """Report a change of a unit at the next poll."""
        self._changes.append(UnitChange(unit, usable, text))

    def start(self, job: FleetJob, unit: int, folder: Path, prefix: str, rank_main: RankMain) -> RankHandle:
        self.prefixes.setdefault(unit, []).append(prefix)
        rank = self.ranks[job.name, unit] = SimulatedRank(unit)
        return rank

    def poll(self) -> list[UnitChange]:
        changes, self._changes = self._changes, []
        for change in changes:
            self.usable[change.unit] = change.usable
        return changes

    def take_use(self) -> list[float]:
        return [0.5] * len(self.units)
