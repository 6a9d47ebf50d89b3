"""Jobs of a whole fleet train in turns on one CPU unit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from failing_ranks import narrow
from narrow_squeezenet import Narrow
from torchvision.models import squeezenet

from multi_dnn_ros.fleet.display import fleet_table
from multi_dnn_ros.fleet.job_training import JobTraining
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.local_launcher import LocalLauncher
from multi_dnn_ros.fleet.running_job import RunningJob
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),)
_PATIENCE_S = 120.0
LONG_STEPS = 900


@pytest.fixture
def jobs(job: FleetJob, monkeypatch: pytest.MonkeyPatch) -> tuple[FleetJob, FleetJob]:
    """`long` is started first, and has trained some steps when it must pause for `short`.

    It trains meanwhile, until the processes of `short` have started and read their data: seconds on a busy machine.
    """
    monkeypatch.setattr(squeezenet, "SqueezeNet", Narrow)
    small = job.model_copy(update={"model": "torchvision:squeezenet1_1"})
    return (
        small.model_copy(update={"name": "long", "steps": LONG_STEPS}),
        small.model_copy(update={"name": "short", "steps": 150, "seed": 1, "start_after_s": 1.0}),
    )


def write(path: Path, *jobs: FleetJob) -> Path:
    """A file of jobs that train in turns, replaced as an editor does."""
    content = [job.model_dump(mode="json", exclude_defaults=True) for job in jobs]
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump({"period_s": 0.5, "turns": True, "jobs": content}))
    new.replace(path)
    return path


class BusyUnits(LocalLauncher):
    """On a machine with other work, a job may get so little of the CPU that the next one would train, too."""

    def take_use(self) -> list[float]:
        return [1.0] * len(self.units)


class Watch:
    """Collects lines, and calls `paused` once, when `long` has paused for `short`."""

    def __init__(self, paused: Callable[[Supervisor], None] = lambda supervisor: None) -> None:
        self.lines: list[str] = []
        self.tables: list[str] = []
        self._paused = paused

    def __call__(self, supervisor: Supervisor, line: str) -> None:
        if line:
            self.lines.append(line)
            return
        assert supervisor.seconds < _PATIENCE_S, self.lines
        placed = [job for job in supervisor.jobs.values() if job.placed and job.processes is not None]
        together = [job.name for job in placed if job.trains and not job.is_trained]
        assert len(together) < 2 or any(job.processes.pause_requested for job in placed if job.processes), self.lines
        if not self.tables and waits(supervisor.jobs["long"]) and supervisor.jobs["short"].is_current:
            self.tables.append(fleet_table(supervisor))
            self._paused(supervisor)


def waits(job: RunningJob) -> bool:
    return job.placed and job.processes is not None and not job.trains and job.processes.is_paused


def run(path: Path, watch: Watch) -> Supervisor:
    supervisor = Supervisor(path, BusyUnits(UNITS), path.parent / "runs", watch=watch, rank_main=narrow)
    assert supervisor.run(), watch.lines
    return supervisor


#: First steps whose losses are compared; a job pauses after fewer.
_COMPARED = 50


def losses_alone(job: FleetJob) -> list[float]:
    """The first losses of the job in this process, without pauses."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = JobTraining(job, torch.device("cpu"))
        alone.take((10,), 0)
        while alone.done < _COMPARED:
            alone.step()
    finally:
        torch.set_num_threads(threads)
    return alone.losses


def test_jobs_train_in_turns_with_the_losses_of_trainings_without_pauses(
    jobs: tuple[FleetJob, FleetJob], tmp_path: Path
) -> None:
    watch = Watch()
    supervisor = run(write(tmp_path / "jobs.yaml", *jobs), watch)
    assert "| long  | paused " in watch.tables[0]
    assert "| short | running" in watch.tables[0]
    figures = supervisor.figures()
    training = [entry["training"] for entry in figures["decisions"]]
    assert ["short"] in training
    assert training[-1] == ["long"]  # at once, not at the end of a period
    assert all(len(names) <= 1 for names in training)
    order = [line.partition(":")[0] for line in watch.lines if ": finished after" in line]
    assert order == ["short", "long"]
    for job in jobs:
        losses = list(supervisor.jobs[job.name].losses)
        assert len(losses) == job.steps
        assert losses[:_COMPARED] == pytest.approx(losses_alone(job), rel=1e-4)
    elapsed_s = {name: job.state.elapsed_s for name, job in supervisor.jobs.items()}
    assert elapsed_s["long"] > elapsed_s["short"]  # its pause counts as running time
    for each in figures["jobs"]:
        alone_s = each["steps"] * each["alone_step_s"]
        assert each["slow_down"] == pytest.approx(elapsed_s[each["name"]] / alone_s)
    assert json.dumps(figures)


def test_a_killed_rank_of_a_paused_job_restarts_only_this_job(jobs: tuple[FleetJob, FleetJob], tmp_path: Path) -> None:
    def kill(supervisor: Supervisor) -> None:
        processes = supervisor.jobs["long"].processes
        assert processes is not None
        psutil.Process(processes.pids[0]).kill()

    watch = Watch(kill)
    supervisor = run(write(tmp_path / "jobs.yaml", *jobs), watch)
    assert any(line.startswith("long: unit 0 (cpu:1) was killed by SIGKILL") for line in watch.lines)
    assert {name: job.starts for name, job in supervisor.jobs.items()} == {"long": 2, "short": 1}
    assert {name: len(job.losses) for name, job in supervisor.jobs.items()} == {"long": LONG_STEPS, "short": 150}


def test_a_paused_job_is_cancelled_with_a_checkpoint(jobs: tuple[FleetJob, FleetJob], tmp_path: Path) -> None:
    path = write(tmp_path / "jobs.yaml", *jobs)

    def cancel(supervisor: Supervisor) -> None:
        write(path, jobs[1])

    watch = Watch(cancel)
    supervisor = run(path, watch)
    assert {name: job.state.status for name, job in supervisor.jobs.items()} == {
        "long": "cancelled", "short": "finished",
    }  # fmt: skip
    assert "long: cancelled; its checkpoint is kept" in watch.lines
    assert 0 < torch.load(tmp_path / "runs/long/checkpoint.pt", weights_only=True)["done"] < LONG_STEPS


def test_an_interrupted_fleet_continues_paused_and_training_jobs(
    jobs: tuple[FleetJob, FleetJob], tmp_path: Path
) -> None:
    path = write(tmp_path / "jobs.yaml", *jobs)

    def interrupt(supervisor: Supervisor) -> None:
        raise KeyboardInterrupt

    first = Supervisor(
        path, BusyUnits(UNITS), tmp_path / "runs", watch=Watch(interrupt), rank_main=narrow
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        first.run()
    watch = Watch()
    second = run(path, watch)
    assert {"long: continues", "short: continues"} <= set(watch.lines)
    for job in jobs:
        losses = list(second.jobs[job.name].losses)
        assert len(losses) == job.steps
        assert losses[:_COMPARED] == pytest.approx(losses_alone(job), rel=1e-4)
