"""Ranks that are stopped by SIGSTOP, as a rank that hangs. The ranks train nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import yaml
from failing_ranks import busy_before_training, without_training
from fleet_run import all_train, run_until
from simulated_launcher import SimulatedLauncher, SimulatedRank
from waiting import until

from multi_dnn_ros.fleet.job_processes import JobProcesses
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.local_launcher import LocalLauncher
from multi_dnn_ros.fleet.messages import Busy, Command, Failed, Message, Report
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2
#: Shortest time after which a rank counts as hung here: long for the other ranks, which report 100 times per second.
_SILENT_S = 5.0
_PATIENCE_S = 120.0


def write(path: Path, job: FleetJob, names: str) -> Path:
    """A file of jobs, replaced as an editor does."""
    jobs = [job.model_copy(update={"name": name}).model_dump(mode="json", exclude_defaults=True) for name in names]
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump({"period_s": 5.0, "jobs": jobs}))
    new.replace(path)
    return path


@pytest.mark.parametrize("hung", ["b", "bc"])
def test_a_job_that_is_added_while_ranks_hang_is_measured_and_the_others_continue(
    hung: str, job: FleetJob, tmp_path: Path
) -> None:
    """The ranks with a share of these jobs are stopped when all jobs train, and then job `d` is added."""
    path = write(tmp_path / "jobs.yaml", job, "abc")

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        jobs = supervisor.jobs
        if not all_train(supervisor):
            return False
        if "d" in jobs:
            return True
        for name in hung:
            processes = jobs[name].processes
            assert processes is not None
            os.kill(processes.pids[jobs[name].shares.index(max(jobs[name].shares))], signal.SIGSTOP)
        write(path, job, "abcd")
        return False

    supervisor, lines = run_until(act, path, LocalLauncher(UNITS), rank_main=without_training, silent_s=_SILENT_S)
    text = "\n".join(lines)
    for name in hung:
        assert f"{name}: unit " in text
    assert text.count("a process of the job hangs; starting again from the last checkpoint") == len(hung), text
    assert {name: job.starts for name, job in supervisor.jobs.items()} == {
        name: 2 if name in hung else 1 for name in "abcd"
    }
    assert "d: 10.0 ms per step alone" in lines


def test_a_job_that_hangs_while_it_is_measured_does_not_keep_the_others_paused(job: FleetJob, tmp_path: Path) -> None:
    path = write(tmp_path / "jobs.yaml", job, "ab")
    stopped: list[int] = []

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        a, b = (supervisor.jobs[name].processes for name in "ab")
        if stopped:
            return all_train(supervisor)
        if supervisor.measuring is not supervisor.jobs["b"] or a is None or b is None:
            return False
        if a.is_paused and 10 in b.shares:
            stopped.append(b.pids[b.shares.index(10)])
            os.kill(stopped[0], signal.SIGSTOP)
        return False

    supervisor, lines = run_until(act, path, LocalLauncher(UNITS), rank_main=without_training, silent_s=_SILENT_S)
    assert {name: job.starts for name, job in supervisor.jobs.items()} == {"a": 1, "b": 2}, lines
    assert lines.count("b: started; measured alone") == 2, lines


@pytest.mark.parametrize("continues", [True, False])
def test_a_rank_that_reads_no_commands_does_not_stop_the_supervisor(
    continues: bool, job: FleetJob, tmp_path: Path
) -> None:
    """A rank without a share is stopped. If it continues, it gets all commands in order; else it counts as hung."""
    ranks = JobProcesses(job, LocalLauncher(UNITS), tmp_path, "a", without_training)

    def received(kind: type[Message], number: int = 0) -> tuple[int, Message] | None:
        found = [each for each in ranks.receive() if isinstance(each[1], kind)]
        return next((each for each in found if not number or getattr(each[1], "number", 0) == number), None)

    try:
        ranks.send((10, 0))
        until(lambda: received(Report), "a report", _PATIENCE_S)
        os.kill(ranks.pids[1], signal.SIGSTOP)
        for _ in range(1_000 if continues else 11_000):
            ranks.send((10, 0))
        if continues:
            os.kill(ranks.pids[1], signal.SIGCONT)
            ranks.send((0, 10))
            unit, _ = until(lambda: received(Report, ranks.number), "a report", _PATIENCE_S)
            assert unit == 1
        else:
            failure = until(lambda: received(Failed), "the failure", _PATIENCE_S)
            assert failure == (1, Failed("does not read its commands: it hangs", False, False))
    finally:
        ranks.kill()


def test_a_rank_that_is_busy_is_not_killed(job: FleetJob, tmp_path: Path) -> None:
    """It says so, as when it compiles or writes a checkpoint, and then needs several times the limit."""

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        return supervisor.jobs["a"].placed and supervisor.jobs["a"].is_current

    supervisor, lines = run_until(
        act, write(tmp_path / "jobs.yaml", job, "a"), LocalLauncher(UNITS), rank_main=busy_before_training, silent_s=0.5
    )
    assert supervisor.jobs["a"].starts == 1, lines


def test_ranks_are_not_killed_after_the_whole_fleet_was_stopped(job: FleetJob, tmp_path: Path) -> None:
    """As by Ctrl-Z: the command continues before the ranks, which have sent nothing."""
    stopped: list[int] = []
    continued_at = 0.0

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        nonlocal continued_at
        job = supervisor.jobs["a"]
        if not stopped and job.placed and job.is_current:
            assert job.processes is not None
            stopped.extend(job.processes.pids)
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            job.processes.receive()  # what they have sent before
            time.sleep(1.5 * _SILENT_S)  # the supervisor is stopped, too
            continued_at = supervisor.seconds
        elif stopped and supervisor.seconds - continued_at > 1.0:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            return True
        return False

    path = write(tmp_path / "jobs.yaml", job, "a")
    supervisor, lines = run_until(act, path, LocalLauncher(UNITS), rank_main=without_training, silent_s=_SILENT_S)
    assert supervisor.jobs["a"].starts == 1, lines


def test_no_job_pauses_for_a_measurement_while_another_cannot(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job `b` writes a checkpoint when `d` is added: `a` continues until `b` can pause."""
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._TICK_S", 0.02)
    path, launcher = write(tmp_path / "jobs.yaml", job, "ab"), SimulatedLauncher(UNITS)
    busy_for = 0

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        nonlocal busy_for
        jobs = supervisor.jobs
        if not all(jobs[name].placed for name in "ab"):
            return False
        a = jobs["a"].processes
        assert a is not None
        if "d" not in jobs:
            write(path, job, "abd")
            return False
        for unit in range(len(UNITS)):
            launcher.ranks["b", unit].busy = Busy("a checkpoint", 1800.0, "busy_limit_s") if busy_for < 50 else None
        if busy_for < 50:
            if supervisor.measuring is jobs["d"]:
                busy_for += 1
                assert not a.pause_requested
            return False
        return jobs["d"].placed

    run_until(act, path, launcher)


def test_a_measurement_does_not_wait_for_a_job_that_is_scored(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That can take hours: `d` is measured and placed while `b` is scored, and `a` continues."""
    monkeypatch.setattr("multi_dnn_ros.fleet.report_timer.AWAITED_S", 0.5)
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._STOP_S", 0.1)
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._TICK_S", 0.02)
    path, launcher = write(tmp_path / "jobs.yaml", job, "ab"), SimulatedLauncher(UNITS)

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        jobs = supervisor.jobs
        if not all(jobs[name].placed for name in "ab"):
            return False
        for unit in range(len(UNITS)):
            launcher.ranks["b", unit].busy = Busy("scoring", 7200.0, "busy_limit_s")
        if "d" not in jobs:
            write(path, job, "abd")
        elif jobs["d"].placed:
            a = jobs["a"].processes
            assert a is not None
            assert not a.pause_requested
            return True
        return False

    run_until(act, path, launcher)


@pytest.mark.parametrize(("done", "busy"), [(1000, None), (10, Busy("writing a checkpoint", 7200.0, "busy_limit_s"))])
def test_no_job_pauses_for_long_for_one_that_is_measured_and_makes_no_steps(
    done: int, busy: Busy | None, job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`d` makes its last step while it is measured, and is scored for hours; or its disk does not answer."""
    monkeypatch.setattr("multi_dnn_ros.fleet.report_timer.AWAITED_S", 0.5)
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._STOP_S", 0.1)
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._TICK_S", 0.02)
    path, launcher = write(tmp_path / "jobs.yaml", job, "a"), SimulatedLauncher(UNITS)

    class FewSteps(SimulatedRank):
        """Not enough for the measurement."""

        def send(self, command: Command) -> None:
            super().send(command)
            if self._report is not None:
                self._report = Report(command.number, done, 1000, 3, 0.1, 1.0)

    def act(supervisor: Supervisor, lines: list[str]) -> bool:
        jobs = supervisor.jobs
        a = jobs["a"].processes
        if not jobs["a"].placed or a is None:
            return False
        if "d" not in jobs:
            monkeypatch.setattr("simulated_launcher.SimulatedRank", FewSteps)
            write(path, job, "ad")
            return False
        if busy is not None and supervisor.measuring is jobs["d"] and a.is_paused and jobs["d"].is_current:
            launcher.ranks["d", 0].busy = busy
        return "d: started; measured alone" in lines and supervisor.measuring is None and not a.pause_requested

    _, lines = run_until(act, path, launcher)
    later = "d: writing a checkpoint takes longer than 30 s; the job is measured later"
    assert lines.count(later) == (busy is not None), lines
