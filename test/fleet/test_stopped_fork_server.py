"""The fork server, which starts all ranks and tells how they have ended, is stopped by SIGSTOP. The ranks train
nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from failing_ranks import without_training
from fleet_run import all_train, command_exit_code, run_until
from test_hung_ranks import write
from waiting import runs, until

from multi_dnn_ros.fleet.fork_server import ServerWatch
from multi_dnn_ros.fleet.job_processes import JobProcesses
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.local_launcher import LocalLauncher, process_context, start_process
from multi_dnn_ros.fleet.messages import Failed
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2
_PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds instead of ten."""
    monkeypatch.setattr("multi_dnn_ros.fleet.fork_server._SILENT_SAMPLES", 20)


def server_of(pid: int) -> psutil.Process:
    server = psutil.Process(pid).parent()
    assert server is not None
    return server


@pytest.fixture
def ranks(job: FleetJob, tmp_path: Path) -> Iterator[JobProcesses]:
    """The ranks of a job on both units."""
    ranks = JobProcesses(job, LocalLauncher(UNITS), tmp_path, "a", without_training)
    yield ranks
    ranks.kill()


def test_the_next_rank_is_started_by_another_server(ranks: JobProcesses, job: FleetJob, tmp_path: Path) -> None:
    stopped = server_of(ranks.pids[0])
    stopped.suspend()
    more = JobProcesses(job.model_copy(update={"name": "b"}), LocalLauncher(UNITS), tmp_path, "b", without_training)
    try:
        assert not runs(stopped)
        assert server_of(more.pids[0]).pid != stopped.pid
        assert all(runs(pid) for pid in (*ranks.pids, *more.pids))
    finally:
        more.kill()


def test_the_end_of_a_rank_is_known(ranks: JobProcesses) -> None:
    stopped = server_of(ranks.pids[0])
    stopped.suspend()
    os.kill(ranks.pids[1], signal.SIGKILL)

    def failed() -> list[tuple[int, Failed]]:
        return [(unit, message) for unit, message in ranks.receive() if isinstance(message, Failed)]

    ((unit, failure),) = until(failed, "the end of the rank", _PATIENCE_S)
    assert unit == 1
    assert "was killed by SIGKILL" in failure.text
    assert not runs(stopped)
    assert runs(ranks.pids[0])


def test_a_job_is_added_and_the_others_continue(job: FleetJob, tmp_path: Path) -> None:
    path = write(tmp_path / "jobs.yaml", job, "a")

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        jobs = supervisor.jobs
        if not all_train(supervisor):
            return False
        if "b" in jobs:
            return True
        assert jobs["a"].processes is not None
        server_of(jobs["a"].processes.pids[0]).suspend()
        write(path, job, "ab")
        return False

    supervisor, _ = run_until(act, path, LocalLauncher(UNITS), rank_main=without_training)
    assert {name: each.starts for name, each in supervisor.jobs.items()} == {"a": 1, "b": 1}


def test_a_server_that_answers_is_not_ended(ranks: JobProcesses, job: FleetJob, tmp_path: Path) -> None:
    """A slow start of a process, in which the server uses CPU time, as it does while it imports PyTorch."""
    server, launcher = server_of(ranks.pids[0]), LocalLauncher(UNITS)
    watch = ServerWatch()
    for _ in range(30):
        before = server.cpu_times()

        def works(before: object = before) -> bool:
            launcher.start(job, 0, tmp_path, "b", without_training).kill()
            return server.cpu_times() != before  # in steps of 10 ms, about what one start takes

        until(works, "CPU time of the server")
        assert not watch.sample()
    assert runs(server)


def stop_server_and_end() -> None:
    process = process_context().Process(target=signal.pause)
    start_process(process)
    server_of(process.pid).suspend()


def test_the_command_ends() -> None:
    assert command_exit_code(stop_server_and_end, _PATIENCE_S) == 0
