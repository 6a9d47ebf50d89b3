"""Starts ranks as processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from multi_dnn_ros.common.processes import describe_exit
from multi_dnn_ros.common.signal_mask import block_in_children
from multi_dnn_ros.fleet.fork_server import watched_server
from multi_dnn_ros.fleet.forked_process import EndedProcesses, ForkedProcess, await_exit_code, kill_group
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.launcher import RankHandle, RankMain, UnitChange
from multi_dnn_ros.fleet.rank_process import LOOPBACK, RankSetup, main
from multi_dnn_ros.fleet.unit_use import UnitUse
from multi_dnn_ros.planning.batch_units import Unit

_END_TIMEOUT_S = 5.0


class LocalRank(RankHandle):
    """A process of this machine, with a pipe."""

    def __init__(self, setup: RankSetup, rank_main: RankMain) -> None:
        super().__init__()
        context = process_context()
        self.connection, rank_end = context.Pipe()
        # Not a daemon, which may not start processes, as rendering `road` data does. `start_process` kills it anyway.
        process: Any = context.Process(
            target=rank_main, args=(setup, rank_end), name=f"{setup.job.name} on {setup.unit.name}"
        )
        start_process(process)
        self.process = ForkedProcess(process)
        rank_end.close()  # so that the connection closes when the process ends

    @property
    def pid(self) -> int:
        return self.process.pid

    def ending(self) -> str | None:
        if self.connection is None:
            return None
        # Another process may have a copy of the rank's end, so that the connection stays open: one that the rank has
        # forked, or a fork server that was stopped just after it had started the rank.
        if not self.connection.closed and (not self.process.has_ended or self.connection.poll()):
            return None
        self.process.join(_END_TIMEOUT_S)
        code = self.process.exit_code
        return describe_exit(code) if code != 0 else None

    def alive(self) -> bool:
        return self.process.exit_code is None

    def join(self, timeout_s: float) -> None:
        self.process.join(timeout_s)

    def kill(self) -> None:
        self.process.kill()


class LocalLauncher:
    """Uses the units of this machine, which are never lost."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = tuple(units)
        self.names: Sequence[str] = [unit.name for unit in units]
        self.usable: Sequence[bool] = [True] * len(units)
        self._use = UnitUse(self.units)
        self._ranks: list[list[LocalRank]] = [[] for _ in units]
        self._ended = EndedProcesses()
        self._store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)

    def start(self, job: FleetJob, unit: int, folder: Path, prefix: str, rank_main: RankMain) -> RankHandle:
        setup = RankSetup(job, unit, self.units[unit], folder, LOOPBACK, self._store.port, prefix)
        rank = LocalRank(setup, rank_main)
        self._ranks[unit].append(rank)
        return rank

    def poll(self) -> list[UnitChange]:
        ended = {rank for ranks in self._ranks for rank in ranks if not rank.alive()}
        self._ended.add(rank.process for rank in ended)
        self._ended.release()
        self._ranks = [[rank for rank in ranks if rank not in ended] for ranks in self._ranks]
        self._use.sample([[rank.pid for rank in ranks] for ranks in self._ranks])
        return []

    def take_use(self) -> list[float]:
        return self._use.take()


def start_process(process: Any) -> None:
    """Start a process of :func:`process_context` with SIGTERM blocked. At the end of this process it is killed, with
    the processes that it has started.

    Service managers send SIGTERM to all processes. It must reach neither the fork server, without which the exit
    codes of ranks are not known, nor a rank that does not ignore it yet. A fork server that does not answer is ended,
    and another one is used.
    """
    with block_in_children(signal.SIGTERM):
        try:
            with watched_server() as was_ended:
                process.start()
        except (EOFError, OSError):
            if not was_ended():
                raise
            process.start()  # by another fork server
    # Runs before multiprocessing waits at exit for the processes that it has started.
    Finalize(process, _kill, (process._popen,), exitpriority=1)


def _kill(started: Any) -> None:
    """Kill a process if it still runs. started: its Popen."""
    if started.poll() is None:
        kill_group(started.pid)
        with suppress(ProcessLookupError):
            os.kill(started.pid, signal.SIGKILL)
        await_exit_code(started)  # multiprocessing would wait without limit


def process_context() -> Any:
    """How ranks are started: as forks of a process that has imported PyTorch, which takes seconds.

    That process never calls CUDA, which would fail in its forks.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([main.__module__])
    return context
