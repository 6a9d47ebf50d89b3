"""How the processes of ranks end, and what the supervisor makes of it. They train nothing."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import yaml
from failing_ranks import without_connection, without_training

from multi_dnn_ros.fleet.job_processes import JobProcesses, wait_for_messages
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.local_launcher import LocalLauncher
from multi_dnn_ros.fleet.messages import Failed
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
    lines: list[str] = []
    broken: list[int] = []

    def watch(supervisor: Supervisor, line: str) -> None:
        if line:
            lines.append(line)
            return
        assert supervisor.seconds < _PATIENCE_S, lines
        job = supervisor.jobs["a"]
        if job.placed and job.is_current and not broken:
            assert job.processes is not None
            broken.append(job.processes.number)
            for end in job.processes.connections[:1]:
                with socket.socket(fileno=os.dup(end.fileno())) as duplicate:
                    duplicate.shutdown(socket.SHUT_RDWR)
        if job.starts == 2 and job.placed and job.is_current:
            raise KeyboardInterrupt

    supervisor = Supervisor(path, LocalLauncher(UNITS), tmp_path / "runs", watch=watch, rank_main=without_training)
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    assert "a: unit 0 (cpu:1) ended with exit code 1; starting again from the last checkpoint" in lines
    assert (tmp_path / "runs/a/checkpoint.pt").is_file()
    assert not [line for line in lines if "failed" in line]


def test_a_failure_that_cannot_be_sent_is_an_exit_code(job: FleetJob, tmp_path: Path) -> None:
    ranks = JobProcesses(job, LocalLauncher(UNITS[:1]), tmp_path, "a", without_connection)
    try:
        while not (found := ranks.receive()):
            wait_for_messages([ranks], 1.0)
    finally:
        ranks.kill()
    assert found == [(0, Failed("ended with exit code 1", False, False))]
