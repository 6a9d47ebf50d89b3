"""Jobs that train in turns lose their turns, their units and their processes, with simulated ranks."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from fleet_run import run_until
from simulated_launcher import SimulatedLauncher, SimulatedRank

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.messages import Command
from multi_dnn_ros.fleet.running_job import JobState, unit_keys
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import Unit, parse_unit

UNIT = parse_unit("cpu:1")
#: Time of a step alone: `a` has the shortest training, `c` the longest.
_ALONE_S = {"a": 0.01, "b": 0.02, "c": 0.03}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated ranks have no message that would end an iteration of the supervisor before its tenth of a second."""
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._TICK_S", 0.005)
    monkeypatch.setattr("multi_dnn_ros.fleet.failure_causes._GRACE_S", 0.0)


def write(folder: Path, job: FleetJob, names: str, units: tuple[Unit, ...]) -> Path:
    """The file of some jobs, whose step times alone are known."""
    jobs = [job.model_copy(update={"name": name}).model_dump(mode="json", exclude_defaults=True) for name in names]
    path = folder / "jobs.yaml"
    path.with_suffix(".new").write_text(yaml.safe_dump({"period_s": 60.0, "turns": True, "jobs": jobs}))
    path.with_suffix(".new").replace(path)
    for name in names:
        state = folder / "runs" / name / "state.json"
        if not state.exists():
            state.parent.mkdir(parents=True)
            limits = (10,) * len(units)
            state.write_text(
                json.dumps(asdict(JobState(alone_s=_ALONE_S[name], limits=limits, units=unit_keys(units))))
            )
    return path


def training(supervisor: Supervisor) -> list[str]:
    return [name for name, job in supervisor.jobs.items() if job.placed and job.trains and job.is_current]


def paused(supervisor: Supervisor) -> list[str]:
    return [name for name, job in supervisor.jobs.items() if job.placed and not job.trains and job.is_current]


def test_the_shortest_job_trains_and_the_others_pause_with_their_shares(job: FleetJob, tmp_path: Path) -> None:
    seen: list[tuple[list[str], list[str]]] = []

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        seen.append((training(supervisor), paused(supervisor)))
        return seen[-1] == (["a"], ["b", "c"])

    supervisor, _ = run_until(act, write(tmp_path, job, "abc", (UNIT,)), SimulatedLauncher((UNIT,)))
    assert all(len(trains) <= 1 for trains, _ in seen)
    last = supervisor.decisions.entries[-1]
    assert (last["training"], last["shares"]) == (["a"], {"a": [10], "b": [10], "c": [10]})
    slow_downs = {name: each.progress.slow_down for name, each in supervisor.jobs.items() if each.progress}
    assert slow_downs == pytest.approx({"a": 1.0, "b": 1.5, "c": 2.0}, rel=0.05)  # b: (0.01 + 0.02) / 0.02


def test_the_next_job_does_not_wait_until_the_former_one_has_paused(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the present step of `b` took very long."""
    launcher = SimulatedLauncher((UNIT,))
    path = write(tmp_path, job, "b", (UNIT,))
    send = SimulatedRank.send
    added = False

    def slow(rank: SimulatedRank, command: Command) -> None:
        if command.stop or not (command.pause and added and rank is launcher.ranks["b", 0]):
            send(rank, command)

    monkeypatch.setattr(SimulatedRank, "send", slow)

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        nonlocal added
        if training(supervisor) == ["b"] and not added:
            added = True
            write(tmp_path, job, "ab", (UNIT,))
        return training(supervisor) == ["a"]

    supervisor, lines = run_until(act, path, launcher)
    assert paused(supervisor) == []
    assert not supervisor.jobs["b"].trains
    assert "train: a; pause: b" in lines
    first = next(entry for entry in supervisor.decisions.entries if entry["training"] == ["a"])
    assert set(first["images_per_s"]) == {"b"}  # the rates are of the jobs that trained until then


def test_when_two_jobs_fail_at_once_the_third_trains_until_they_have_started_again(
    job: FleetJob, tmp_path: Path
) -> None:
    launcher = SimulatedLauncher((UNIT,))
    failed, alone = False, False

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        nonlocal failed, alone
        if training(supervisor) == ["a"] and paused(supervisor) == ["b", "c"] and not failed:
            failed = True
            launcher.ranks["a", 0].fail("crashed", lambda: None)
            launcher.ranks["b", 0].fail("crashed", lambda: None)
        alone |= failed and supervisor.jobs["c"].trains and supervisor.jobs["a"].processes is None
        return alone and training(supervisor) == ["a"] and paused(supervisor) == ["b", "c"]

    supervisor, lines = run_until(act, write(tmp_path, job, "abc", (UNIT,)), launcher)
    assert {name: each.starts for name, each in supervisor.jobs.items()} == {"a": 2, "b": 2, "c": 1}
    assert lines.index("train: c") < lines.index("a: continues", lines.index("train: c"))


def test_a_paused_job_continues_from_its_checkpoint_when_its_unit_is_lost(job: FleetJob, tmp_path: Path) -> None:
    units = (UNIT, UNIT)
    launcher = SimulatedLauncher(units)
    waiting = ""

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        nonlocal waiting
        if not waiting and len(training(supervisor)) == 2 and paused(supervisor):
            (waiting,) = paused(supervisor)
            launcher.change(supervisor.jobs[waiting].shares.index(10), False, "the unit was lost")
        lost = next((unit for unit, can in enumerate(launcher.usable) if not can), None)
        shares = [each.shares for each in supervisor.jobs.values() if each.placed]
        return lost is not None and len(shares) == 3 and not any(each[lost] for each in shares)

    supervisor, lines = run_until(act, write(tmp_path, job, "abc", units), launcher)
    assert supervisor.jobs[waiting].starts == 2
    assert sum(line.startswith(f"{waiting}: continues from the last checkpoint without unit") for line in lines) == 1
    assert len(supervisor.decisions.entries[-1]["training"]) <= 1
