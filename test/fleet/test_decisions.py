"""Decisions use step times that all jobs had with their present shares, with simulated ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from simulated_launcher import SimulatedLauncher, SimulatedRank

from multi_dnn_ros.fleet import decisions
from multi_dnn_ros.fleet.decisions import Decisions
from multi_dnn_ros.fleet.jobs_file import FleetJob, JobsFile
from multi_dnn_ros.fleet.launcher import RankHandle, RankMain
from multi_dnn_ros.fleet.messages import Command, Message, Report
from multi_dnn_ros.fleet.running_job import JobState, unit_keys
from multi_dnn_ros.fleet.shares import Shares, used
from multi_dnn_ros.fleet.supervisor import Supervisor
from multi_dnn_ros.planning.batch_units import parse_unit

UNITS = (parse_unit("cpu:1"),) * 2
#: Step times in seconds: of a whole job that has a unit for itself, and those that are known as alone.
_STEP_S, _ALONE_S = 0.1, {"a": 0.05, "b": 0.05, "c": 0.1}
#: Relative increase of the step time of a job by each other job on a unit.
_BURDEN = {"a": 1.0, "b": 1.0, "c": 5.0}
_TURNS = 1500


class SharedUnits(SimulatedLauncher):
    """A step takes as long as on the unit where it is slowest: there, in proportion to the job's tenths, and longer for
    each other job. As with real ranks, a job keeps reporting its former step time until the next command.

    joining: turns that a job needs after a command before it trains; only then it slows the others down.
    """

    def __init__(self, joining: int = 0) -> None:
        super().__init__(UNITS)
        self.joining = joining
        self.shares: dict[str, Shares] = {}  # of the jobs that train

    def start(self, job: FleetJob, unit: int, folder: Path, prefix: str, rank_main: RankMain) -> RankHandle:
        return SharingRank(job.name, unit, self)

    def step_s(self, job: str) -> float:
        shares = self.shares[job]
        others = [sum(bool(each[unit]) for each in self.shares.values()) - 1 for unit in range(len(shares))]
        return max(_STEP_S * shares[unit] / 10 * (1 + _BURDEN[job] * others[unit]) for unit in used(shares))


class SharingRank(SimulatedRank):
    def __init__(self, job: str, unit: int, launcher: SharedUnits) -> None:
        super().__init__(unit)
        self._job, self._launcher = job, launcher
        self._command: Command | None = None
        self._left, self._step_s = 0, 0.0

    def send(self, command: Command) -> None:
        super().send(command)
        self._report = None
        trains = not (command.prepare or command.pause or command.stop)
        self._command = command if trains and command.active[:1] == (self.unit,) else None
        if self._command is not None:
            self._left = self._launcher.joining if command.shares != self._launcher.shares.get(self._job) else 0

    def receive(self) -> list[Message]:
        if self._command is not None and not self._left:
            self._launcher.shares[self._job] = self._command.shares
            step_s = self._launcher.step_s(self._job)
            self._report = Report(self._command.number, 10, 1000, 1, step_s, 1.0)
            self._command = None
        elif self._report is not None:
            self._report = replace(self._report, count=self._report.count + 1)
        self._left = max(0, self._left - 1)
        return super().receive()


def entries(job: FleetJob, folder: Path, launcher: SharedUnits, count: int) -> list[Mapping[str, Any]]:
    """The first `count` decisions about three jobs that train at the same time, without those that place them.

    a and b are on unit 0, c on unit 1. Their step times alone are known.
    """
    jobs = [job.model_copy(update={"name": name}) for name in ("a", "c", "b")]
    content = [each.model_dump(mode="json", exclude_defaults=True) for each in jobs]
    (folder / "jobs.yaml").write_text(yaml.safe_dump({"period_s": 0.2, "turns": False, "jobs": content}))
    for each in jobs:
        (folder / "runs" / each.name).mkdir(parents=True)
        state = JobState(alone_s=_ALONE_S[each.name], limits=(10, 10), units=unit_keys(UNITS))
        (folder / "runs" / each.name / "state.json").write_text(json.dumps(asdict(state)))
    turns = seen = 0

    def watch(supervisor: Supervisor, line: str) -> None:
        nonlocal turns, seen
        turns += not line
        assert turns < _TURNS, supervisor.decisions.entries
        made = len(decided(supervisor))
        if made > seen:  # the reports of this turn are those that the decision used
            assert all(job.measured_steps >= 3 for job in supervisor.jobs.values())
        seen = made
        if made >= count:
            raise KeyboardInterrupt

    def decided(supervisor: Supervisor) -> list[Mapping[str, Any]]:
        return [entry for entry in supervisor.decisions.entries if entry["reason"] != "start"]

    supervisor = Supervisor(folder / "jobs.yaml", launcher, folder / "runs", watch=watch)
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    return decided(supervisor)


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated ranks have no message that would end a turn of the supervisor before its tenth of a second."""
    monkeypatch.setattr("multi_dnn_ros.fleet.supervisor._TICK_S", 0.005)


@pytest.mark.parametrize("joining", [0, 60])
def test_a_change_that_slows_another_job_down_too_much_is_reverted(job: FleetJob, tmp_path: Path, joining: int) -> None:
    """Spreading a or b over both units makes it faster, but c, which reported its former step time before, six times as
    slow; also if the moved job needs longer to join than a trial lasts.
    """
    first, second = entries(job, tmp_path, SharedUnits(joining), 2)
    assert first["slow_downs"] == {name: pytest.approx(value, 0.1) for name, value in (("a", 4), ("b", 4), ("c", 1))}
    assert first["reason"] == "algorithm"
    (moved,) = first["jobs"]
    assert 0 < first["shares"][moved][1] < 10
    assert second["reason"] == "reverted"
    assert second["slow_downs"]["c"] == pytest.approx(6.0, 0.1)
    assert second["shares"][moved] == [10, 0]


class Timed:
    """Decisions about two jobs that train at the same time, every 60 s, so that a trial takes 10 s.

    The test moves the clock.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(decisions, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        jobs = [{"name": "a", "model": "m", "data": "d", "global_batch": 100, "steps": 9}]
        launcher: Any = SimpleNamespace(units=UNITS)
        self.decisions = Decisions(launcher, JobsFile.model_validate({"turns": False, "jobs": jobs}))
        self.sent: list[str] = []
        self.jobs: dict[str, Any] = {
            name: SimpleNamespace(
                placed=True, is_current=True, trains=True, shares=(10, 0),
                processes=SimpleNamespace(send=lambda shares, name=name: self.sent.append(name)),
            )
            for name in ("a", "b")
        }  # fmt: skip

    def is_due_after(self, seconds: float) -> bool:
        self.now_s += seconds
        self.decisions.begin_period(self.jobs)
        return self.decisions.is_due(self.jobs, 60.0)


def test_the_period_begins_when_all_jobs_train(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(monkeypatch)
    timed.decisions.discard_step_times()
    timed.jobs["b"].is_current = False  # it joins a unit
    assert not timed.is_due_after(500.0)
    assert timed.sent == []
    timed.jobs["b"].is_current = True
    assert not timed.is_due_after(0.0)
    assert timed.sent == ["a", "b"]
    assert not timed.is_due_after(59.0)
    assert timed.is_due_after(2.0)
    assert timed.sent == ["a", "b"]


def test_after_the_end_of_a_job_the_next_decision_follows_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(monkeypatch)
    assert not timed.is_due_after(50.0)
    timed.decisions.discard_step_times(decide_soon=True)
    assert not timed.is_due_after(30.0)
    assert not timed.is_due_after(9.0)
    assert timed.is_due_after(2.0)


def test_a_job_without_shares_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = Timed(monkeypatch)
    timed.decisions.discard_step_times()
    timed.jobs["b"].placed = timed.jobs["b"].is_current = False
    assert timed.is_due_after(0.0)
