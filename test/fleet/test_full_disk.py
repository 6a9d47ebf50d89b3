"""Files of a fleet that cannot be written.

A link to /dev/full takes the place of a file that is written on a full disk, a folder that of a file that cannot be
replaced; both also stop root.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from failing_ranks import narrow, without_training
from fleet_run import Watch, all_train, run_until
from narrow_squeezenet import Narrow
from simulated_launcher import SimulatedLauncher
from torchvision.models import squeezenet

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.local_launcher import LocalLauncher
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),)


def write(path: Path, *jobs: FleetJob) -> Path:
    content = [job.model_dump(mode="json", exclude_defaults=True) for job in jobs]
    path.write_text(yaml.safe_dump({"period_s": 0.5, "jobs": content}))
    return path


def block(path: Path) -> None:
    """Make the replacement of a file fail."""
    (path / "taken").mkdir(parents=True)


def unblock(path: Path) -> None:
    (path / "taken").rmdir()
    path.rmdir()


def test_a_state_that_cannot_be_written_is_written_later(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multi_dnn_ros.fleet.unwritten_files._SAVE_AGAIN_S", 0.1)
    jobs = [job.model_copy(update={"name": name}) for name in "ab"]
    states = [tmp_path / f"runs/{name}/state.json" for name in "ab"]
    blocked = False

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        nonlocal blocked
        if not blocked:
            for state in states:  # written for the first time after the measurement
                block(state)
            blocked = True
        elif all(state.is_dir() for state in states) and all(job.is_current for job in supervisor.jobs.values()):
            for state in states:
                unblock(state)
        return all(state.is_file() for state in states) and sum("written again" in line for line in lines) == 2

    _, lines = run_until(act, write(tmp_path / "jobs.yaml", *jobs), SimulatedLauncher(UNITS))
    for name, state in zip("ab", states, strict=True):
        warnings = [line for line in lines if line.startswith(f"{name}: {state} cannot be written (")]
        assert len(warnings) == 1, lines
        assert f"{name}: its state can be written again" in lines
        assert json.loads(state.read_text())["alone_s"] > 0.0


def test_all_jobs_are_stopped_although_the_state_of_the_first_cannot_be_written(job: FleetJob, tmp_path: Path) -> None:
    jobs = [job.model_copy(update={"name": name}) for name in "ab"]

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        if all_train(supervisor):
            for name in "ab":
                (tmp_path / f"runs/{name}/state.json").unlink()
            block(tmp_path / "runs/a/state.json")
            return True
        return False

    path = write(tmp_path / "jobs.yaml", *jobs)
    _, lines = run_until(act, path, LocalLauncher(UNITS), rank_main=without_training)
    assert [line for line in lines if line.startswith(f"a: {tmp_path}/runs/a/state.json cannot be written")], lines
    assert json.loads((tmp_path / "runs/b/state.json").read_text())["status"] == "waiting"
    assert (tmp_path / "runs/b/checkpoint.pt").is_file()


@pytest.fixture
def trained(job: FleetJob, monkeypatch: pytest.MonkeyPatch) -> FleetJob:
    """A small network, here and in the ranks."""
    monkeypatch.setattr(squeezenet, "SqueezeNet", Narrow)
    return job.model_copy(update={"model": "torchvision:squeezenet1_1", "steps": 120, "checkpoint_every_s": 0.1})


def run(path: Path) -> tuple[Supervisor, list[str]]:
    watch = Watch(lambda supervisor, lines: False)
    supervisor = Supervisor(path, LocalLauncher(UNITS), path.parent / "runs", watch=watch, rank_main=narrow)
    supervisor.run()
    return supervisor, watch.lines


def test_a_job_trains_on_without_a_checkpoint_while_the_disk_is_full(trained: FleetJob, tmp_path: Path) -> None:
    part = tmp_path / "runs/a/checkpoint.pt.part"
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")  # the failed attempt removes it, as if files were deleted after it
    supervisor, lines = run(write(tmp_path / "jobs.yaml", trained))
    named = [line for line in lines if line.startswith(f"a: {part.with_suffix('')}: checkpoint cannot be written (")]
    assert len(named) == 1, lines
    assert "No space left" in named[0]
    assert supervisor.jobs["a"].state.status == "finished"
    assert supervisor.jobs["a"].starts == 1
    assert part.with_suffix("").is_file()


def test_a_checkpoint_that_cannot_be_written_at_the_end_is_an_error(trained: FleetJob, tmp_path: Path) -> None:
    block(tmp_path / "runs/a/checkpoint.pt.part")
    supervisor, lines = run(write(tmp_path / "jobs.yaml", trained))
    state = supervisor.jobs["a"].state
    assert state.status == "failed"
    assert f"{tmp_path}/runs/a/checkpoint.pt: checkpoint cannot be written" in state.text
    assert sum("it continues, and will try again" in line for line in lines) == 1  # once per minute
    assert supervisor.jobs["a"].report is not None
    assert supervisor.jobs["a"].report.done == 120
