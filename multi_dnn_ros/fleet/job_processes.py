"""The supervisor's side of one job: starts its ranks, sends commands, receives messages, ends the ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from multi_dnn_ros.fleet.data_reading import DataReading
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.launcher import Launcher, RankHandle, RankMain
from multi_dnn_ros.fleet.messages import Command, Ended, Failed, Message, Paused, Ready, Report
from multi_dnn_ros.fleet.rank_process import main
from multi_dnn_ros.fleet.report_timer import ReportTimer
from multi_dnn_ros.fleet.shares import Shares, used

_END_TIMEOUT_S, _TICK_S = 5.0, 0.1
#: Starts of a rank that the job does not need, after which it goes on without this rank.
_RANK_STARTS = 3


class JobProcesses:
    """The ranks of one job, one per usable unit.

    shares, number: those of the last command. has_turn: whether the job is to train; False: it pauses until it has its
    turn. pause_requested: the last command was to pause for a measurement. is_paused: the job has paused. timer: of its
    reports.

    A rank is prepared when it has read the data. Give shares only to prepared ranks: the others would wait for it.
    """

    def __init__(
        self, job: FleetJob, launcher: Launcher, folder: Path, prefix: str, rank_main: RankMain = main
    ) -> None:
        self.shares: Shares = (0,) * len(launcher.units)
        self.number = 0
        self.has_turn = True
        self.pause_requested = self.is_paused = False
        self.timer = ReportTimer()
        self._job, self._launcher = job, launcher
        self._reading = DataReading()  # ranks that are not prepared yet
        self._joining: dict[int, int] = {}  # ranks that are not ready for other shares yet, and the command with these
        self._involved: dict[int, int] = {}  # ranks in commands that are not in force yet, and the last of these
        self._ranks: dict[int, RankHandle] = {}
        self._rank_starts: dict[int, int] = {}
        self._start: Callable[[int], RankHandle] = lambda unit: launcher.start(job, unit, folder, prefix, rank_main)
        try:
            for unit, usable in enumerate(launcher.usable):
                if usable:
                    self.add(unit)
        except BaseException:
            self.kill()
            raise

    def add(self, unit: int) -> None:
        """Start a rank on a usable unit. It reads the data before a command gives it a share, because other jobs pause
        while the job is measured, and the job itself pauses while a rank joins.
        """
        self._rank_starts[unit] = 1
        self._begin(unit)

    def _begin(self, unit: int) -> None:
        self._ranks[unit] = self._start(unit)
        self._reading.begin(unit, awaited=self._rank_starts[unit] == 1)
        self._ranks[unit].send(Command(self.number, self.shares, prepare=True))

    def drop(self, unit: int) -> None:
        """End the rank on a unit, and go on without it; the job must not need it."""
        rank = self._ranks.pop(unit, None)
        self._reading.forget(unit)
        if rank is not None:
            rank.kill()
            rank.close()

    def replace(self, unit: int) -> bool:
        """End the rank on a unit, which the job must not need, and start it again. Returns whether it was started: it
        is not after the third start, nor on a unit that was lost.
        """
        self.drop(unit)
        if self._rank_starts[unit] >= _RANK_STARTS or not self._launcher.usable[unit]:
            return False
        self._rank_starts[unit] += 1
        self._begin(unit)
        return True

    def needs(self, unit: int) -> bool:
        """Whether the job cannot go on without the rank on this unit: it has a share, or had one before a command that
        may not be in force yet. Until then it computes its share, or passes the state of the job on.
        """
        return bool(self.shares[unit]) or unit in self._involved

    def has_rank(self, unit: int) -> bool:
        """Whether the job has a rank on the unit."""
        return unit in self._ranks

    def has_only(self, unit: int) -> bool:
        """Whether the unit is the only one on which the job has a rank."""
        return list(self._ranks) == [unit]

    def is_prepared(self, unit: int) -> bool:
        """Whether the job has a rank on the unit that has read the data."""
        return unit in self._ranks and unit not in self._reading.units

    @property
    def reading(self) -> list[int]:
        """Units whose ranks are reading the data."""
        return self._reading.units

    @property
    def can_begin(self) -> bool:
        """Whether the ranks have read the data, apart from those that need much longer than the others."""
        return self._reading.is_enough

    @property
    def pids(self) -> list[int]:
        """Process ids by unit."""
        return [rank.pid for _, rank in sorted(self._ranks.items())]

    @property
    def connections(self) -> list[Connection[Any, Any]]:
        """The open connections, to wait on."""
        return [
            rank.connection
            for rank in self._ranks.values()
            if rank.connection is not None and not rank.connection.closed
        ]

    def send(self, shares: Shares, *, pause: bool = False, stop: bool = False) -> None:
        """Send a command: the state of the job from its next step on. pause: for a measurement of another job."""
        before = tuple(used(self.shares))
        self.number += 1
        command = Command(self.number, shares, before, pause or not self.has_turn, stop)
        if command.active != before and not stop:
            self._joining = dict.fromkeys((*before[:1], *command.active), self.number)
        self._involved |= dict.fromkeys((*before, *command.active), self.number)
        # The first active rank, which announces the command to the others, gets it last: they must already have it.
        for unit in sorted(self._ranks, key=lambda unit: unit == (before[0] if before else -1)):
            self._ranks[unit].send(command)
        self.shares, self.pause_requested, self.is_paused = shares, pause, False
        self.timer.command_sent()

    def receive(self) -> list[tuple[int, Message]]:
        """New messages, each with its rank; a process that ends without a final message yields a Failed."""
        found = [(unit, message) for unit, rank in self._ranks.items() for message in rank.receive()]
        for unit, message in found:
            self.timer.received(message, self.number)
            if isinstance(message, Ready):
                self._reading.end(unit)
                if message.number >= self._joining.get(unit, 0):
                    self._joining.pop(unit, None)
            elif isinstance(message, Report | Paused):
                if message.number == self.number:
                    self._joining.clear()
                self._involved = {each: number for each, number in self._involved.items() if number > message.number}
        return found

    def add_time(self, seconds: float) -> None:
        """Time has passed in which messages were received."""
        self.timer.add(seconds)
        self._reading.add(seconds)

    def overdue(self, shortest_s: float) -> tuple[int, str] | None:
        """A rank that hangs, and what to say about it; None: no rank hangs, as far as is known.

        During steps it is not known which rank hangs, because the first active one reports, and waits for the others.
        The first one is then named. shortest_s: limit for a job with short steps, see :class:`ReportTimer`.
        """
        limit_s = self._job.busy_limit_s
        if (unit := self._reading.overdue(limit_s)) is not None:
            slow = f"did not finish reading the data within {limit_s:.4g} s (busy_limit_s)"
            return unit, f"{slow}: its process hangs, or the data are slow"
        text = self.timer.overdue(shortest_s)
        if text is None:
            return None
        if self._joining:
            return min(self._joining), f"{text}: its process hangs"
        return used(self.shares)[0], f"{text}: a process of the job hangs"

    @property
    def awaits_ending(self) -> bool:
        """Whether a rank has closed its connection, but how its process has ended is not known yet."""
        return any(rank.awaits_ending for rank in self._ranks.values())

    def close(self) -> None:
        """Close the connections. Ranks that have no share wait for a message and end when the connection is closed."""
        for rank in self._ranks.values():
            rank.close()

    def join(self, timeout_s: float) -> None:
        """Wait until all ranks have ended by themselves; kill the others. Closes the connections first."""
        self.close()
        deadline = time.monotonic() + timeout_s
        for rank in self._ranks.values():
            rank.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def finish(self, ended: int, timeout_s: float) -> None:
        """End all ranks after rank `ended` has sent the result of the job. The others have nothing left to do, and are
        killed: one that was to join waits for the first active rank, which does not train any more.
        """
        for unit, rank in self._ranks.items():
            if unit != ended:
                rank.kill()
        self.join(timeout_s)

    def kill(self) -> None:
        """Kill all ranks."""
        for rank in self._ranks.values():
            rank.kill()
        for rank in self._ranks.values():
            rank.join(_END_TIMEOUT_S)
            rank.close()


def stop_jobs(jobs: Sequence[JobProcesses], checkpoint_s: float, end_s: float) -> dict[JobProcesses, str]:
    """End jobs with a checkpoint, all at the same time. Returns those that have a share, but wrote no checkpoint, each
    with the reason.

    Jobs that have written no checkpoint after `checkpoint_s` are not waited for. Ranks that have not ended `end_s`
    later are killed; if this function is interrupted, all ranks are killed.
    """
    waiting = [job for job in jobs if used(job.shares)]
    failed: dict[JobProcesses, str] = {}
    try:
        for job in waiting:
            job.send(job.shares, stop=True)
        deadline = time.monotonic() + checkpoint_s
        while waiting and time.monotonic() < deadline:
            wait_for_messages(waiting, _TICK_S)
            for job in list(waiting):
                found = job.receive()
                if any(isinstance(message, Ended) for _, message in found):
                    waiting.remove(job)
                elif texts := [each.text for unit, each in found if isinstance(each, Failed) and job.needs(unit)]:
                    waiting.remove(job)
                    failed[job] = texts[0]
        for job in jobs:
            job.close()
        deadline = time.monotonic() + end_s
        for job in jobs:
            job.join(max(0.0, deadline - time.monotonic()))
    except BaseException:
        for job in jobs:
            job.kill()
        raise
    return failed | dict.fromkeys(waiting, f"no answer within {checkpoint_s:g} s")


def wait_for_messages(jobs: Sequence[JobProcesses], timeout_s: float) -> None:
    """Return when a message has arrived from any rank, or after the timeout."""
    ends = [end for job in jobs for end in job.connections]
    if ends:
        wait(ends, timeout_s)
    else:
        time.sleep(timeout_s)
