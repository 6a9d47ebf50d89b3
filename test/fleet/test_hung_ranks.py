"""Ranks that are stopped by SIGSTOP, as a rank that hangs. The ranks train nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import yaml
from failing_ranks import busy_before_training, without_training
from simulated_launcher import SimulatedLauncher
from waiting import until

from multi_dnn_ros.fleet.job_processes import JobProcesses
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.local_launcher import LocalLauncher
from multi_dnn_ros.fleet.messages import Busy, Failed, Message, Report
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


class Watch:
    """Stops the rank with a share of each job in `hung` when all jobs train, and then adds job `d`. Ends the fleet when
    `d` has its shares and all jobs train.
    """

    def __init__(self, path: Path, job: FleetJob, hung: str) -> None:
        self.lines: list[str] = []
        self.done: dict[str, int] = {}
        self._path, self._job, self._hung = path, job, hung

    def __call__(self, supervisor: Supervisor, line: str) -> None:
        if line:
            self.lines.append(line)
            return
        assert supervisor.seconds < _PATIENCE_S, self.lines
        jobs = supervisor.jobs
        if not all(job.placed and job.is_current for job in jobs.values()):
            return
        if "d" in jobs:
            self.done = {name: job.report.done for name, job in jobs.items() if job.report is not None}
            raise KeyboardInterrupt
        for name in self._hung:
            processes = jobs[name].processes
            assert processes is not None
            os.kill(processes.pids[jobs[name].shares.index(max(jobs[name].shares))], signal.SIGSTOP)
        write(self._path, self._job, "abcd")


@pytest.mark.parametrize("hung", ["b", "bc"])
def test_a_job_that_is_added_while_ranks_hang_is_measured_and_the_others_continue(
    hung: str, job: FleetJob, tmp_path: Path
) -> None:
    path = write(tmp_path / "jobs.yaml", job, "abc")
    watch = Watch(path, job, hung)
    supervisor = Supervisor(
        path, LocalLauncher(UNITS), tmp_path / "runs", watch=watch, rank_main=without_training, silent_s=_SILENT_S
    )
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    text = "\n".join(watch.lines)
    for name in hung:
        assert f"{name}: unit " in text
    assert text.count("a process of the job hangs; starting again from the last checkpoint") == len(hung), text
    assert {name: job.starts for name, job in supervisor.jobs.items()} == {
        name: 2 if name in hung else 1 for name in "abcd"
    }
    assert "d: 10.0 ms per step alone" in watch.lines
    assert set(watch.done) == set("abcd")


def test_a_job_that_hangs_while_it_is_measured_does_not_keep_the_others_paused(job: FleetJob, tmp_path: Path) -> None:
    path = write(tmp_path / "jobs.yaml", job, "ab")
    lines: list[str] = []
    stopped: list[int] = []

    def watch(supervisor: Supervisor, line: str) -> None:
        if line:
            lines.append(line)
            return
        assert supervisor.seconds < _PATIENCE_S, lines
        a, b = (supervisor.jobs[name].processes for name in "ab")
        if stopped and all(each.placed and each.is_current for each in supervisor.jobs.values()):
            raise KeyboardInterrupt
        if stopped or supervisor.measuring is not supervisor.jobs["b"] or a is None or b is None:
            return
        if a.is_paused and 10 in b.shares:
            stopped.append(b.pids[b.shares.index(10)])
            os.kill(stopped[0], signal.SIGSTOP)

    supervisor = Supervisor(
        path, LocalLauncher(UNITS), tmp_path / "runs", watch=watch, rank_main=without_training, silent_s=_SILENT_S
    )
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
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
    lines: list[str] = []

    def watch(supervisor: Supervisor, line: str) -> None:
        lines.append(line)
        assert supervisor.seconds < _PATIENCE_S, lines
        if supervisor.jobs and supervisor.jobs["a"].placed and supervisor.jobs["a"].is_current:
            raise KeyboardInterrupt

    supervisor = Supervisor(
        write(tmp_path / "jobs.yaml", job, "a"), LocalLauncher(UNITS), tmp_path / "runs", watch=watch,
        rank_main=busy_before_training, silent_s=0.5,
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    assert supervisor.jobs["a"].starts == 1, lines


def test_ranks_are_not_killed_after_the_whole_fleet_was_stopped(job: FleetJob, tmp_path: Path) -> None:
    """As by Ctrl-Z: the command continues before the ranks, which have sent nothing."""
    lines: list[str] = []
    stopped: list[int] = []
    continued_at = 0.0

    def watch(supervisor: Supervisor, line: str) -> None:
        nonlocal continued_at
        if line:
            lines.append(line)
            return
        assert supervisor.seconds < _PATIENCE_S, lines
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
            raise KeyboardInterrupt

    supervisor = Supervisor(
        write(tmp_path / "jobs.yaml", job, "a"), LocalLauncher(UNITS), tmp_path / "runs", watch=watch,
        rank_main=without_training, silent_s=_SILENT_S,
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    assert supervisor.jobs["a"].starts == 1, lines


def test_no_job_pauses_for_a_measurement_while_another_cannot(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Job `b` writes a checkpoint when `d` is added: `a` continues until `b` can pause."""
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._TICK_S", 0.02)
    path, launcher = write(tmp_path / "jobs.yaml", job, "ab"), SimulatedLauncher(UNITS)
    busy_for = 0

    def watch(supervisor: Supervisor, line: str) -> None:
        nonlocal busy_for
        jobs = supervisor.jobs
        if line or not all(jobs[name].placed for name in "ab"):
            return
        assert supervisor.seconds < _PATIENCE_S
        a = jobs["a"].processes
        assert a is not None
        if "d" not in jobs:
            write(path, job, "abd")
            return
        for unit in range(len(UNITS)):
            launcher.ranks["b", unit].busy = Busy(1800.0) if busy_for < 50 else None
        if busy_for < 50:
            if supervisor.measuring is jobs["d"]:
                busy_for += 1
                assert not a.pause_requested
        elif jobs["d"].placed:
            raise KeyboardInterrupt

    supervisor = Supervisor(path, launcher, tmp_path / "runs", watch=watch)
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()


def test_a_measurement_does_not_wait_for_a_job_that_is_scored(
    job: FleetJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That can take hours: `d` is measured and placed while `b` is scored, and `a` continues."""
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._TICK_S", 0.02)
    path, launcher = write(tmp_path / "jobs.yaml", job, "ab"), SimulatedLauncher(UNITS)

    def watch(supervisor: Supervisor, line: str) -> None:
        jobs = supervisor.jobs
        if line or not all(jobs[name].placed for name in "ab"):
            return
        assert supervisor.seconds < _PATIENCE_S
        for unit in range(len(UNITS)):
            launcher.ranks["b", unit].busy = Busy(None)
        if "d" not in jobs:
            write(path, job, "abd")
        elif jobs["d"].placed:
            a = jobs["a"].processes
            assert a is not None
            assert not a.pause_requested
            raise KeyboardInterrupt

    supervisor = Supervisor(path, launcher, tmp_path / "runs", watch=watch)
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
