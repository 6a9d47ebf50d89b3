"""How the processes of ranks end, and how the supervisor reacts. The ranks train nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from failing_ranks import ends_with_message, ends_without_message, with_a_process, without_connection, without_training
from fleet_run import command_exit_code, run_until
from waiting import runs, until

from multi_dnn_ros.fleet.job_processes import JobProcesses, wait_for_messages
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.launcher import RankMain
from multi_dnn_ros.fleet.local_launcher import LocalLauncher, start_process
from multi_dnn_ros.fleet.messages import Ended, Failed, Message
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2
_PATIENCE_S = 60.0


@pytest.fixture
def path(job: FleetJob, tmp_path: Path) -> Path:
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump({"jobs": [job.model_dump(mode="json", exclude_defaults=True)]}))
    return path


def test_a_job_whose_rank_loses_its_connection_starts_again(path: Path, tmp_path: Path) -> None:
    broken: list[int] = []  # the unit with the job, which may be any of the two

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        job = supervisor.jobs["a"]
        if job.placed and job.is_current and not broken:
            assert job.processes is not None
            broken.append(job.shares.index(max(job.shares)))
            connection = job.processes.connections[broken[0]]
            with socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
        return job.starts == 2 and job.placed and job.is_current

    _, lines = run_until(act, path, LocalLauncher(UNITS), rank_main=without_training)
    (unit,) = broken
    assert f"a: unit {unit} (cpu:1) ended with exit code 1; starting again from the last checkpoint" in lines
    assert (tmp_path / "runs/a/checkpoint.pt").is_file()
    assert not [line for line in lines if "failed" in line]


def test_all_processes_get_sigterm_and_the_checkpoint_is_written(path: Path, tmp_path: Path) -> None:
    """As from systemd or Slurm."""

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        job = supervisor.jobs["a"]
        if not job.placed or job.processes is None:
            return False
        server = psutil.Process(job.processes.pids[0]).parent()
        assert server is not None
        for process in (server, *server.children()):
            process.send_signal(signal.SIGTERM)
        return True

    _, lines = run_until(act, path, LocalLauncher(UNITS), rank_main=without_training)
    assert (tmp_path / "runs/a/checkpoint.pt").is_file()
    assert not [line for line in lines if "without a checkpoint" in line]


def test_a_rank_is_judged_correctly_after_the_fork_server_was_killed(path: Path, tmp_path: Path) -> None:
    """As by the kernel when memory runs out. It starts again for the next job; the ranks continue without it."""
    killed: list[int] = []

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        job = supervisor.jobs["a"]
        if not (job.placed and job.is_current and job.processes is not None):
            return False
        if not killed:
            server = psutil.Process(job.processes.pids[0]).parent()
            assert server is not None
            killed.append(server.pid)
            server.kill()
            until(lambda: not runs(server), "the end of the fork server")
            psutil.Process(job.processes.pids[job.shares.index(10)]).kill()
        elif job.starts == 2:
            server = psutil.Process(job.processes.pids[0]).parent()
            assert server is not None
            assert server.pid not in killed
            server.kill()
            until(lambda: not runs(server), "the end of the fork server")
            return True
        return False

    _, lines = run_until(act, path, LocalLauncher(UNITS), rank_main=without_training)
    failed = [line for line in lines if "starting again" in line]
    assert len(failed) == 1, lines
    assert "was killed by SIGKILL" in failed[0]
    assert not [line for line in lines if "without a checkpoint" in line]
    assert (tmp_path / "runs/a/checkpoint.pt").is_file()


def test_ranks_run_and_are_killed_after_the_fork_server_was_killed(job: FleetJob, tmp_path: Path) -> None:
    launcher = LocalLauncher(UNITS)
    ranks = [launcher.start(job, unit, tmp_path, "a", without_training) for unit in range(len(UNITS))]
    server = psutil.Process(ranks[0].pid).parent()
    assert server is not None
    server.kill()
    until(lambda: not runs(server), "the end of the fork server")
    assert [rank.alive() for rank in ranks] == [True, True]
    os.kill(ranks[0].pid, signal.SIGSTOP)  # it does not end by itself when its connection closes
    for rank in ranks:
        rank.close()
        rank.join(0.0)
    assert ranks[0].alive()
    for rank in ranks:
        rank.kill()
        rank.join(_PATIENCE_S)
    assert not any(rank.alive() or runs(rank.pid) for rank in ranks)


def ignore_sigterm(connection: Connection[Any, Any]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection.send(os.getpid())
    while True:
        signal.pause()


def start_and_end() -> None:
    context = multiprocessing.get_context("forkserver")
    own_end, rank_end = context.Pipe()
    process = context.Process(target=ignore_sigterm, args=(rank_end,))  # as in LocalRank
    start_process(process)
    assert own_end.poll(_PATIENCE_S)


def test_a_rank_does_not_keep_the_command_from_ending() -> None:
    """As after a second Ctrl-C."""
    assert command_exit_code(start_and_end, _PATIENCE_S) == 0


def test_a_failure_that_cannot_be_sent_is_an_exit_code(job: FleetJob, tmp_path: Path) -> None:
    assert first_messages(job, tmp_path, without_connection) == [(0, Failed("ended with exit code 1", False, False))]


def test_a_rank_may_start_processes(job: FleetJob, tmp_path: Path) -> None:
    """Data `road` of more than 32 scenes is rendered by several processes."""
    assert first_messages(job, tmp_path, with_a_process) == [(0, Ended(True, 0))]


@pytest.mark.parametrize("message", [True, False])
def test_the_end_of_a_rank_is_known_while_another_process_has_a_copy_of_its_connection(
    message: bool, job: FleetJob, tmp_path: Path
) -> None:
    """The last message of the rank is not lost."""
    found = first_messages(job, tmp_path, ends_with_message if message else ends_without_message)
    assert found == [(0, Ended(True, 5) if message else Failed("ended with exit code 3", False, False))]


def first_messages(job: FleetJob, folder: Path, rank_main: RankMain) -> list[tuple[int, Message]]:
    """The first messages of a job with one rank."""
    ranks = JobProcesses(job, LocalLauncher(UNITS[:1]), folder, "a", rank_main)
    try:
        while not (found := ranks.receive()):
            wait_for_messages([ranks], 1.0)
    finally:
        ranks.kill()
    return found
