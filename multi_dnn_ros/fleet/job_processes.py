"""The supervisor's side of one job: starts its ranks, sends commands, receives messages, ends the ranks."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.messages import Command, Failed, Message
from multi_dnn_ros.fleet.rank_process import RankSetup, main
from multi_dnn_ros.fleet.shares import Shares, used
from multi_dnn_ros.planning.batch_units import Unit

#: What a rank runs; a test puts its own in place.
RankMain = Callable[[RankSetup, "Connection[Any, Any]"], None]
_END_TIMEOUT_S = 5.0


class JobProcesses:
    """The ranks of one job, one per unit.

    shares, number: of the last command. held: the job was told to hold; holds: it does.
    """

    def __init__(
        self, job: FleetJob, units: Sequence[Unit], folder: Path, port: int, prefix: str, rank_main: RankMain = main
    ) -> None:
        self.shares: Shares = (0,) * len(units)
        self.number = 0
        self.held = self.holds = False
        self._ends: list[Connection[Any, Any]] = []
        self._processes: list[Any] = []
        context = _context(units)
        try:
            for rank, unit in enumerate(units):
                here, there = context.Pipe()
                setup = RankSetup(job, rank, unit, folder, port, prefix)
                process: Any = context.Process(
                    target=rank_main, args=(setup, there), name=f"{job.name} on {unit.name}", daemon=True
                )
                process.start()
                there.close()  # so that the connection closes when the process ends
                self._ends.append(here)
                self._processes.append(process)
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids by unit."""
        return [int(process.pid) for process in self._processes]

    @property
    def connections(self) -> list[Connection[Any, Any]]:
        """To wait on."""
        return self._ends

    def send(self, shares: Shares, *, hold: bool = False, stop: bool = False) -> None:
        """Set the state of the job from its next step on."""
        before = tuple(used(self.shares))
        self.number += 1
        command = Command(self.number, shares, before, hold, stop)
        # The first active rank announces the command to the others, which then must have it.
        order = sorted(range(len(self._ends)), key=lambda rank: rank == (before[0] if before else -1))
        for rank in order:
            try:
                self._ends[rank].send(command)
            except OSError:
                continue  # receive() reports the rank that has ended
        self.shares, self.held, self.holds = shares, hold, False

    def receive(self) -> list[tuple[int, Message]]:
        """New messages with the rank; the end of a process without one is a Failed."""
        found: list[tuple[int, Message]] = []
        for rank, end in enumerate(self._ends):
            try:
                while not end.closed and end.poll():
                    found.append((rank, end.recv()))
            except (EOFError, OSError):
                end.close()
                self._processes[rank].join(_END_TIMEOUT_S)
                code = self._processes[rank].exitcode
                if code != 0:
                    found.append((rank, Failed(_ending(code), False, False)))
        return found

    def alive(self) -> bool:
        """Whether a rank is still running."""
        return any(process.exitcode is None for process in self._processes)

    def join(self, timeout_s: float) -> None:
        """Wait until all ranks have ended by themselves; kill the others. Closes the connections first, on which idle
        ranks wait.
        """
        for end in self._ends:
            end.close()
        deadline = time.monotonic() + timeout_s
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End all ranks at once."""
        for process in self._processes:
            if process.exitcode is None:
                process.kill()
        for process in self._processes:
            process.join()
        for end in self._ends:
            end.close()


def _context(units: Sequence[Unit]) -> Any:
    """How ranks are started. On CPUs they are forks of a process that has imported PyTorch, which takes seconds.

    On GPUs each imports it again: after a fork, CUDA fails if anything had called it before.
    """
    if any(unit.device != "cpu" for unit in units):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([main.__module__])
    return context


def wait_for_messages(jobs: Sequence[JobProcesses], timeout_s: float) -> None:
    """Return when a message has come from any rank, or after the timeout."""
    ends = [end for job in jobs for end in job.connections if not end.closed]
    if ends:
        wait(ends, timeout_s)
    else:
        time.sleep(timeout_s)


def _ending(code: int | None) -> str:
    if code is None:
        return "closed its connection"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    maybe = " (the kernel does this when memory runs out)" if code == -signal.SIGKILL else ""
    return f"was killed by {name}{maybe}"
