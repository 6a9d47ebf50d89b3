"""Processes that a rank has started do not outlive it, and leave no zombies while the fleet runs."""

from __future__ import annotations

import os
import signal
import subprocess
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import runs, until

from multi_dnn_ros.fleet import rank_process
from multi_dnn_ros.fleet.job_processes import JobProcesses
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.local_launcher import LocalLauncher
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),)


def with_children(setup: rank_process.RankSetup, connection: Connection[Any, Any]) -> None:
    """Starts a process, which starts another one, and sends their ids."""

    def run(self: rank_process.Rank) -> None:
        child = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE)
        assert child.stdout is not None
        connection.send((child.pid, int(child.stdout.readline())))
        while True:
            connection.recv()

    rank_process.Rank.run = run  # type: ignore[method-assign]
    rank_process.main(setup, connection)


@pytest.mark.parametrize("without_server", [False, True])
@pytest.mark.parametrize("how", ["killed by the fleet", "killed by others"])
def test_processes_of_a_killed_rank_end_and_are_reaped(
    how: str, without_server: bool, job: FleetJob, tmp_path: Path
) -> None:
    """Also those of a rank whose fork server has ended, so that it is a child of the fleet."""
    launcher = LocalLauncher(UNITS)
    ranks = JobProcesses(job, launcher, tmp_path, "a", with_children)
    try:
        (rank,) = ranks.pids
        (connection,) = ranks.connections
        assert connection.poll(60.0)
        children = connection.recv()
        if without_server:
            server = psutil.Process(rank).parent()
            assert server is not None
            server.kill()
            until(lambda: not runs(server), "the end of the fork server")
        if how == "killed by others":
            os.kill(rank, signal.SIGKILL)
            until(ranks.receive, "the end of the rank")
        else:
            ranks.kill()

        def all_reaped() -> bool:
            launcher.poll()
            return not any(psutil.pid_exists(pid) for pid in (rank, *children))

        until(all_reaped, "the end of all processes", 20.0)
    finally:
        ranks.kill()


def test_a_rank_that_ends_by_itself_leaves_no_process_behind(job: FleetJob, tmp_path: Path) -> None:
    """Its connection was closed at the end of the command, after which the launcher is not polled any more."""
    ranks = JobProcesses(job, LocalLauncher(UNITS), tmp_path, "a", with_children)
    (connection,) = ranks.connections
    assert connection.poll(60.0)
    children = connection.recv()
    ranks.join(60.0)
    until(lambda: not any(runs(pid) for pid in children), "the end of all processes", 20.0)
