"""Ranks that hang before they train: while they read their data, or, stopped by SIGSTOP, while others join them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import yaml
from failing_ranks import hung_while_reading, hung_while_reading_anywhere, lost_before_sending, narrow
from fleet_run import all_train, run_until
from narrow_squeezenet import Narrow
from torchvision.models import squeezenet

from multi_dnn_ros.fleet.display import fleet_table
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.local_launcher import LocalLauncher
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2
OVERDUE = "did not finish reading the data within 6 s (busy_limit_s): its process hangs, or the data are slow"


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multi_dnn_ros.fleet.report_timer.AWAITED_S", 3.0)
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._STOP_S", 2.0)


@pytest.fixture
def job(job: FleetJob, monkeypatch: pytest.MonkeyPatch) -> FleetJob:
    """A small network, here and in the ranks, that trains until the test ends."""
    monkeypatch.setattr(squeezenet, "SqueezeNet", Narrow)
    return job.model_copy(update={"model": "torchvision:squeezenet1_1", "steps": 100_000})


def write(path: Path, job: FleetJob, names: str, *, turns: bool = False, **changes: float) -> Path:
    """A file of jobs, replaced as an editor does. changes: of jobs `b` and `c`."""
    jobs = [job.model_copy(update={"name": name, **(changes if name in "bc" else {})}) for name in names]
    content = [each.model_dump(mode="json", exclude_defaults=True) for each in jobs]
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump({"period_s": 1.0, "turns": turns, "jobs": content}))
    new.replace(path)
    return path


def stop_rank(supervisor: Supervisor, name: str, unit: int) -> None:
    processes = supervisor.jobs[name].processes
    assert processes is not None
    os.kill(processes.pids[unit], signal.SIGSTOP)


def decided_about(supervisor: Supervisor, names: str, since: int) -> bool:
    """Whether a decision was made about exactly these jobs after the first `since` ones."""
    return any(sorted(entry["shares"]) == sorted(names) for entry in supervisor.decisions.entries[since:])


@pytest.mark.parametrize("hung", [pytest.param("b", marks=pytest.mark.long), "bc"])
def test_jobs_that_hang_while_they_join_ranks_do_not_stop_the_others(hung: str, job: FleetJob, tmp_path: Path) -> None:
    """Their ranks on unit 1 hang when they are measured on unit 0; then they are measured on both units. Meanwhile `a`
    trains, decisions are made, and `d` is added, measured and placed. Later it is known which rank hung.
    """
    path = write(tmp_path / "jobs.yaml", job, "a")
    stopped: list[str] = []
    done: list[int] = []
    since = 0
    limit = {"join_limit_s": 30.0}

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        nonlocal since
        jobs = supervisor.jobs
        if not jobs["a"].placed:
            return False
        if "b" not in jobs:
            write(path, job, "a" + hung, **limit)
            return False
        measured = supervisor.measuring
        if measured is not None and measured.name in hung and measured.name not in stopped:
            stopped.append(measured.name)
            stop_rank(supervisor, measured.name, 1)
            if sorted(stopped) == sorted(hung):
                assert jobs["a"].report is not None
                done.append(jobs["a"].report.done)
                since = len(supervisor.decisions.entries)
                write(path, job, f"a{hung}d", **limit)
        if "d" in jobs and jobs["d"].placed and decided_about(supervisor, "ad", since) and len(done) == 1:
            assert jobs["a"].report is not None
            done.append(jobs["a"].report.done)
            assert all(jobs[name].starts == 1 for name in hung)  # before the limit
        return len(done) == 2 and all(jobs[name].starts == 2 and jobs[name].placed for name in hung)

    supervisor, lines = run_until(act, path, LocalLauncher(UNITS), rank_main=narrow)
    assert done[1] - done[0] > 20, lines
    for name in hung:
        assert (
            f"{name}: unit 1 (cpu:1) did not finish joining units 0, 1 within 30 s (join_limit_s): its process hangs; "
            "starting again from the last checkpoint"
        ) in lines
    assert supervisor.jobs["a"].starts == supervisor.jobs["d"].starts == 1


@pytest.mark.parametrize("turns", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_placed_job_that_hangs_while_it_gets_other_units_is_left_out(
    turns: bool, job: FleetJob, tmp_path: Path
) -> None:
    """The rank of `b` on the other unit hangs, and then gets a share. Decisions about `a` go on without `b`."""
    path = write(tmp_path / "jobs.yaml", job, "ab", turns=turns, join_limit_s=15.0)
    state = {"since": -1}

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        jobs = supervisor.jobs
        if not all_train(supervisor) and state["since"] < 0:
            return False
        b = jobs["b"]
        if state["since"] < 0:
            unit = b.shares.index(0)
            stop_rank(supervisor, "b", unit)
            assert b.processes is not None
            b.processes.send((5, 5))
            state["since"], state["unit"] = len(supervisor.decisions.entries), unit
        return decided_about(supervisor, "a", state["since"]) and b.starts == 2 and b.placed and b.is_current

    supervisor, lines = run_until(act, path, LocalLauncher(UNITS), rank_main=narrow)
    assert any(line.startswith("b: joining units 0, 1 takes longer than") for line in lines), lines
    failed = f"b: unit {state['unit']} (cpu:1) did not finish joining units 0, 1 within 15 s"
    assert any(line.startswith(failed) for line in lines), lines
    assert supervisor.jobs["a"].starts == 1


def test_a_job_whose_first_rank_is_killed_before_it_sends_the_state_restarts_at_once(
    job: FleetJob, tmp_path: Path
) -> None:
    """Not after `join_limit_s`, which is ten minutes."""
    path = write(tmp_path / "jobs.yaml", job, "a")
    folder = tmp_path / "runs" / "a"

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        a = supervisor.jobs["a"]
        if a.placed and a.is_current and a.starts == 1 and a.processes is not None:
            (folder / "kill").touch()
            a.processes.send(tuple(a.shares[::-1]))
        return a.starts == 2 and a.placed and a.is_current

    _, lines = run_until(act, path, LocalLauncher(UNITS), rank_main=lost_before_sending)
    killed = [line for line in lines if "was killed by SIGKILL" in line and "starting again" in line]
    assert len(killed) == 1, lines


@pytest.mark.parametrize("hung", [pytest.param("b", marks=pytest.mark.long), "bc"])
def test_jobs_with_a_process_that_hangs_while_it_reads_the_data_train_on_the_other_unit(
    hung: str, job: FleetJob, tmp_path: Path
) -> None:
    """Only this process is started again, twice. `a` and `d` are not affected."""
    path = write(tmp_path / "jobs.yaml", job, f"{hung}ad", busy_limit_s=6.0)
    gave_up = [f"{name}: unit 1 (cpu:1) {OVERDUE}; the job continues without this unit" for name in hung]

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        jobs = supervisor.jobs
        for name in hung:
            if not jobs[name].placed and jobs[name].processes is not None and jobs[name].state.status == "starting":
                assert f"| {name}   | reading data |" in fleet_table(supervisor)
            assert jobs[name].shares[1] == 0
        return set(gave_up) <= set(lines) and decided_about(supervisor, f"{hung}ad", 1)

    supervisor, lines = run_until(act, path, LocalLauncher(UNITS), rank_main=hung_while_reading)
    again = "this process starts again, and the job continues without it"
    for name in hung:
        assert lines.count(f"{name}: unit 1 (cpu:1) {OVERDUE}; {again}") == 2, lines
        assert lines.count(gave_up[hung.index(name)]) == 1
        assert any(line.startswith(f"{name}: started") for line in lines)
    assert all(each.starts == 1 for each in supervisor.jobs.values())


def test_a_job_all_of_whose_processes_hang_while_they_read_the_data_fails(job: FleetJob, tmp_path: Path) -> None:
    """At the third attempt; `a` trains meanwhile."""
    path = write(tmp_path / "jobs.yaml", job, "ba", busy_limit_s=3.0)

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        return supervisor.jobs["b"].has_ended and supervisor.jobs["a"].placed

    supervisor, lines = run_until(act, path, LocalLauncher(UNITS[:1]), rank_main=hung_while_reading_anywhere)
    (failed,) = [line for line in lines if line.startswith("b: failed")]
    assert "unit 0 (cpu:1): did not finish reading the data within 3 s (busy_limit_s)" in failed
    assert supervisor.jobs["b"].starts == 3
    assert supervisor.jobs["a"].starts == 1
