"""The lock on the folder of a fleet."""

from __future__ import annotations

import errno
import fcntl
import logging
from pathlib import Path

import pytest
import yaml
from simulated_launcher import SimulatedLauncher, SimulatedRank

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.fleet.folder_lock import lock_folder
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit


def test_a_folder_is_used_by_one_fleet_at_a_time(job: FleetJob, tmp_path: Path) -> None:
    path, folder = tmp_path / "jobs.yaml", tmp_path / "runs"
    path.write_text(yaml.safe_dump({"jobs": [job.model_dump(mode="json", exclude_defaults=True)]}))
    refused: list[str] = []

    def watch(supervisor: Supervisor, line: str) -> None:
        if not line:
            with pytest.raises(CommandError) as error:
                Supervisor(path, SimulatedLauncher((parse_unit("cpu:1"),)), folder)
            refused.append(str(error.value))
            raise KeyboardInterrupt

    supervisor = Supervisor(path, SimulatedLauncher((parse_unit("cpu:1"),)), folder, watch=watch)
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    assert refused == [f"{folder} is used by another fleet; end it first, or give another --folder"]
    lock_folder(folder).close()  # free after the end of the fleet


def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(file: object, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with caplog.at_level(logging.WARNING), lock_folder(tmp_path):
        assert f"{tmp_path / '.lock'} cannot be locked (Function not implemented): do not use the folder" in caplog.text


def test_a_folder_is_free_after_two_errors(job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Showing a line fails, at first while the fleet runs and again while it ends."""
    path, folder = tmp_path / "jobs.yaml", tmp_path / "runs"
    path.write_text(yaml.safe_dump({"jobs": [job.model_dump(mode="json", exclude_defaults=True)]}))
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._STOP_S", 0.1)
    monkeypatch.setattr(SimulatedRank, "send", lambda rank, command: None)

    def watch(supervisor: Supervisor, line: str) -> None:
        if supervisor.measuring is not None:
            raise BrokenPipeError

    supervisor = Supervisor(path, SimulatedLauncher((parse_unit("cpu:1"),)), folder, watch=watch)
    with pytest.raises(BrokenPipeError):
        supervisor.run()
    lock_folder(folder).close()
