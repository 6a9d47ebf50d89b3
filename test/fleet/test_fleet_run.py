"""Whole fleets on two CPU units: jobs are added, cancelled, fail and continue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from failing_ranks import ROOM, narrow, short_of_memory
from narrow_squeezenet import Narrow
from torchvision.models import squeezenet

from multi_dnn_ros.fleet.display import fleet_table
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.local_launcher import LocalLauncher
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2


@pytest.fixture
def job(job: FleetJob, monkeypatch: pytest.MonkeyPatch) -> FleetJob:
    """A small network, here and in the ranks: what is tested here is not what it learns."""
    monkeypatch.setattr(squeezenet, "SqueezeNet", Narrow)
    return job.model_copy(update={"model": "torchvision:squeezenet1_1"})


def write(path: Path, *jobs: FleetJob, **more: Any) -> Path:
    """A file of jobs, replaced as an editor does."""
    content = {"period_s": 0.5, **more, "jobs": [job.model_dump(mode="json", exclude_defaults=True) for job in jobs]}
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump(content))
    new.replace(path)
    return path


def test_a_fleet_with_an_added_a_cancelled_a_bad_and_a_too_large_job(job: FleetJob, tmp_path: Path) -> None:
    """a: runs to its end; b: does not fit on unit 0 as a whole; bad: has no such data; c: added, then cancelled."""
    a = job.model_copy(update={"steps": 40})
    b = job.model_copy(update={"name": "b", "seed": 1, "steps": 15})
    bad = job.model_copy(update={"name": "bad", "data": f"classes:{tmp_path}/none"})
    c = job.model_copy(update={"name": "c", "steps": 100_000})
    path = write(tmp_path / "jobs.yaml", a, b, bad)
    lines: list[str] = []

    def watch(supervisor: Supervisor, line: str) -> None:
        if line:
            lines.append(line)
        done = {name: each.has_ended for name, each in supervisor.jobs.items()}
        if "a: started; measured alone" in lines and "c" not in done:  # long before `a` can end
            write(path, a, b, bad, c)
        elif "c" in done and supervisor.jobs["c"].placed and not done["c"]:
            write(path, a, b, bad)

    supervisor = Supervisor(path, LocalLauncher(UNITS), tmp_path / "runs", watch=watch, rank_main=short_of_memory)
    assert supervisor.run() is False
    status = {name: each.state.status for name, each in supervisor.jobs.items()}
    assert status == {"a": "finished", "b": "finished", "bad": "failed", "c": "cancelled"}, lines
    assert "none" in supervisor.jobs["bad"].state.text
    assert any(line.startswith("b: out of memory on unit 0 (cpu:1) with 10 tenths") for line in lines)
    assert "c: added" in lines
    assert "c: cancelled; its checkpoint is kept" in lines
    assert (tmp_path / "runs/c/checkpoint.pt").is_file()
    assert len(supervisor.jobs["a"].losses) == a.steps
    assert (tmp_path / "runs/a/a.safetensors").is_file()
    figures = supervisor.figures()
    for decision in figures["decisions"]:
        assert all(sum(shares) == 10 for shares in decision["shares"].values())
        assert decision["shares"].get("b", [0, 10])[0] <= supervisor.jobs["b"].state.limits[0]
    assert 0 < supervisor.jobs["b"].state.limits[0] <= ROOM
    assert json.dumps(figures)
    assert "| a " in fleet_table(supervisor)


def test_an_interrupted_fleet_continues_from_its_checkpoints(job: FleetJob, tmp_path: Path) -> None:
    job = job.model_copy(update={"steps": 120})  # not done by the time that it has been measured
    path = write(tmp_path / "jobs.yaml", job)

    def interrupt(supervisor: Supervisor, line: str) -> None:
        if line.endswith("per step alone"):
            raise KeyboardInterrupt

    first = Supervisor(path, LocalLauncher(UNITS), tmp_path / "runs", watch=interrupt, rank_main=narrow)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    state = json.loads((tmp_path / "runs/a/state.json").read_text())
    assert state["alone_s"] > 0.0
    lines: list[str] = []
    second = Supervisor(
        path,
        LocalLauncher(UNITS),
        tmp_path / "runs",
        watch=lambda supervisor, line: lines.append(line),
        rank_main=narrow,
    )
    assert second.run() is True
    assert "a: continues" in lines  # not measured again
    assert len(second.jobs["a"].losses) == job.steps
    third = Supervisor(path, LocalLauncher(UNITS), tmp_path / "runs", watch=lambda supervisor, line: lines.append(line))
    assert third.run() is True
    assert any(line.startswith("a: finished before") for line in lines)
