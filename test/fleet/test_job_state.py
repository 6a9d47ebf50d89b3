"""How a fleet uses the state that a former fleet has left in the folder of a job, with simulated ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from simulated_launcher import SimulatedLauncher, SimulatedRank

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.messages import Command, Ended, Failed
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2
_PATIENCE_S = 60.0


def write(path: Path, *jobs: FleetJob) -> Path:
    """A file of jobs, replaced as an editor does."""
    content = {"jobs": [job.model_dump(mode="json", exclude_defaults=True) for job in jobs]}
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump(content))
    new.replace(path)
    return path


class Watch:
    """Collects lines, and ends the fleet when the test says so. ends: called after each turn."""

    def __init__(self, ends: Callable[[Supervisor], bool] = lambda supervisor: False) -> None:
        self.lines: list[str] = []
        self._ends = ends

    def __call__(self, supervisor: Supervisor, line: str) -> None:
        if line:
            self.lines.append(line)
            return
        assert supervisor.seconds < _PATIENCE_S, self.lines
        if self._ends(supervisor):
            raise KeyboardInterrupt


def test_an_added_job_with_an_invalid_state_fails_alone(job: FleetJob, tmp_path: Path) -> None:
    path, b = write(tmp_path / "jobs.yaml", job), job.model_copy(update={"name": "b"})
    state = tmp_path / "runs/b/state.json"

    def ends(supervisor: Supervisor) -> bool:
        if supervisor.jobs["a"].placed and not state.exists():
            state.parent.mkdir(parents=True)
            state.write_text("{")
            write(path, job, b)
        return "b" in supervisor.jobs

    watch = Watch(ends)
    supervisor = Supervisor(path, SimulatedLauncher(UNITS), tmp_path / "runs", watch=watch)
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    assert supervisor.jobs["b"].state.status == "failed"
    assert any(line.startswith(f"b: failed: {state}: not the state of a job") for line in watch.lines)
    assert supervisor.jobs["a"].state.status == "waiting"
    assert state.read_text() == "{"


def run_until_placed(path: Path) -> Supervisor:
    """Run the fleet of one job until it has its shares, then interrupt it."""
    watch = Watch(lambda supervisor: supervisor.jobs["a"].placed and supervisor.jobs["a"].is_current)
    supervisor = Supervisor(path, SimulatedLauncher(UNITS), path.parent / "runs", watch=watch)
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    return supervisor


def test_a_job_that_did_not_fit_into_memory_is_tried_again_without_limits(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "jobs.yaml", job)

    def fail(rank: SimulatedRank, command: Command) -> None:
        if rank.unit in command.active:
            rank.put(Failed("CUDA out of memory", True, False))

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedRank, "send", fail)
        patch.setattr("multi_dnn_ros.fleet.failure_causes._GRACE_S", 0.0)
        first = Supervisor(path, SimulatedLauncher(UNITS), tmp_path / "runs")
        assert not first.run()
    assert sum(first.jobs["a"].state.limits) < 10
    assert run_until_placed(path).jobs["a"].state.limits == (10, 10)


def test_a_finished_job_with_other_settings_is_an_error_that_lists_them(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "jobs.yaml", job)

    def finish(rank: SimulatedRank, command: Command) -> None:
        if command.active and command.active[0] == rank.unit:
            rank.put(Ended(True, 3, (0.5, 0.4, 0.3)))

    monkeypatch.setattr(SimulatedRank, "send", finish)
    assert Supervisor(path, SimulatedLauncher(UNITS), tmp_path / "runs").run()
    watch = Watch()
    write(path, job.model_copy(update={"steps": 90, "priority": 2.0}))
    other = Supervisor(path, SimulatedLauncher(UNITS), tmp_path / "runs", watch=watch)
    assert not other.run()
    assert other.jobs["a"].state.text.startswith(
        "finished before with other settings: steps is 60 there, 90 now. Use the same settings or another name"
    )
    assert any(line.startswith("a: failed: finished before with other settings") for line in watch.lines)
    write(path, job.model_copy(update={"priority": 2.0}))
    same = Supervisor(path, SimulatedLauncher(UNITS), tmp_path / "runs")
    assert same.run()
    assert same.jobs["a"].state.status == "finished"


def test_times_of_other_settings_are_not_used(job: FleetJob, tmp_path: Path) -> None:
    path = write(tmp_path / "jobs.yaml", job)
    assert run_until_placed(path).jobs["a"].state.alone_s > 0.0
    same = Supervisor(path, SimulatedLauncher(UNITS), tmp_path / "runs").jobs["a"].state
    assert same.alone_s > 0.0
    assert same.elapsed_s > 0.0
    write(path, job.model_copy(update={"global_batch": 30}))
    other = Supervisor(path, SimulatedLauncher(UNITS), tmp_path / "runs").jobs["a"].state
    assert (other.alone_s, other.elapsed_s, other.limits) == (0.0, 0.0, (10, 10))


def test_a_job_that_is_removed_and_added_again_has_other_keys_in_the_store(job: FleetJob, tmp_path: Path) -> None:
    b = job.model_copy(update={"name": "b"})
    path = write(tmp_path / "jobs.yaml", job, b)

    def ends(supervisor: Supervisor) -> bool:
        found = supervisor.jobs["b"]
        if found.placed and found.processes is not None:
            if len(launcher.prefixes[0]) > 2:
                return True
            write(path, job)
        elif found.state.status == "cancelled":
            write(path, job, b)
        return False

    launcher, watch = SimulatedLauncher(UNITS), Watch(ends)
    supervisor = Supervisor(path, launcher, tmp_path / "runs", watch=watch)
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    for prefixes in launcher.prefixes.values():
        assert len(prefixes) == len(set(prefixes)) == 3


def test_all_ranks_read_the_data_when_they_start_also_if_the_job_was_measured_before(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the job pauses while a rank that joins reads the data."""
    path = write(tmp_path / "jobs.yaml", job)
    run_until_placed(path)
    prepared: list[int] = []
    send = SimulatedRank.send

    def record(rank: SimulatedRank, command: Command) -> None:
        if command.prepare:
            prepared.append(rank.unit)
        send(rank, command)

    monkeypatch.setattr(SimulatedRank, "send", record)
    assert run_until_placed(path).jobs["a"].state.alone_s > 0.0
    assert prepared == [0, 1]
