"""Fleets whose processes only count steps: turns, failures, interruptions. test_training.py has real processes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_units import FakePool, lost, raised

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.fleet.controller import Fleet, train_under_each
from multi_dnn_ros.fleet.jobs_file import JobsFile
from multi_dnn_ros.fleet.policy import Policy

Watch = Callable[[Fleet, str], None]


def jobs_file(*lengths: int, **more: Any) -> JobsFile:
    """Jobs a, b, ... with these numbers of steps."""
    jobs = [
        {"name": name, "model": "m", "data": "classes:d", "global_batch": 10, "steps": steps, **more}
        for name, steps in zip("abcdef", lengths, strict=False)
    ]
    return JobsFile.model_validate({"period_s": 1.0, "jobs": jobs})


class Lines:
    """The `watch` of a fleet: keeps the lines about events. act: called as well."""

    def __init__(self, act: Watch = lambda fleet, line: None) -> None:
        self.lines: list[str] = []
        self._act = act

    def __call__(self, fleet: Fleet, line: str) -> None:
        if line:
            self.lines.append(line)
        self._act(fleet, line)

    def have(self, *words: str) -> bool:
        return any(all(word in line for word in words) for line in self.lines)


def fleet_of(
    file: JobsFile, pool: FakePool, folder: Path, watch: Watch = lambda fleet, line: None, policy: Policy = "fair"
) -> Fleet:
    return Fleet(file, policy, pool, folder, watch)  # type: ignore[arg-type]


def run(fleet: Fleet) -> bool:
    return asyncio.run(fleet.run())


def status(fleet: Fleet) -> dict[str, str]:
    return {name: job.state.status for name, job in fleet.jobs.items()}


def test_jobs_train_in_turns_with_whole_units(tmp_path: Path) -> None:
    pool = FakePool(2)
    fleet = fleet_of(jobs_file(60, 40, 20), pool, tmp_path)
    assert run(fleet) is True
    assert status(fleet) == dict.fromkeys("abc", "finished")
    assert not pool.together()
    assert {unit for _, unit, _, _ in pool.calls} == {0, 1}
    for name, job in fleet.jobs.items():
        assert job.state.scores == {"top1": 1.0}
        assert job.state.step_s[1] == pytest.approx(pool.step_s, rel=0.3)
        assert job.state.slow_down is not None
        assert job.state.slow_down > 0.4, name  # at best on both units all the time
        assert len(job.state.losses) == job.state.total
    for decision in fleet.decisions:
        used = [unit for units in decision["training"].values() for unit in units]
        assert len(used) == len(set(used))


def test_a_job_that_is_alone_gets_both_units(tmp_path: Path) -> None:
    pool = FakePool(2)
    fleet = fleet_of(jobs_file(200), pool, tmp_path)
    assert run(fleet) is True
    assert fleet.jobs["a"].state.step_s[2] < 0.7 * fleet.jobs["a"].state.step_s[1]
    assert pool.started["a"][0] == 0
    assert 0 < pool.started["a"][1] == pool.started["a"][2] < 200  # both processes, from the checkpoint of the first
    assert fleet.jobs["a"].state.slow_down == pytest.approx(0.5, abs=0.25)


@pytest.mark.parametrize(("policy", "units"), [("even", {0, 1}), ("one_unit", {0})])
def test_the_jobs_of_the_baselines_train_at_the_same_time(policy: Policy, units: set[int], tmp_path: Path) -> None:
    pool = FakePool(2)
    fleet = fleet_of(jobs_file(60, 60, 60), pool, tmp_path, policy=policy)
    assert run(fleet) is True
    assert pool.together() & {("a", "b"), ("a", "c")}
    assert {unit for name, unit, _, _ in pool.calls if name == "a"} == units


def test_a_job_fails_when_its_processes_are_lost_without_progress_and_the_others_finish(tmp_path: Path) -> None:
    def fault(job: str, method: str, done: int) -> None:
        if job == "b" and method == "train":
            raise lost()

    pool, watch = FakePool(2, fault), Lines()
    fleet = fleet_of(jobs_file(40, 40), pool, tmp_path, watch)
    assert run(fleet) is False
    assert status(fleet) == {"a": "finished", "b": "failed"}
    assert pool.started["b"] == [0, 0, 0]
    assert watch.have("b: failed a process has ended unexpectedly")


def test_a_job_whose_training_raises_fails_at_once_with_its_reason(tmp_path: Path) -> None:
    def fault(job: str, method: str, done: int) -> None:
        if job == "b" and method == "train" and done > 5:
            raise raised(ValueError("step 11: the loss is nan"))

    pool, watch = FakePool(2, fault), Lines()
    fleet = fleet_of(jobs_file(40, 100), pool, tmp_path, watch)
    assert run(fleet) is False
    assert status(fleet) == {"a": "finished", "b": "failed"}
    assert pool.started["b"] == [0]
    assert watch.have("b: failed step 11: the loss is nan")
    assert (tmp_path / "b" / "error.log").is_file()
    # A failed job is tried again when the command is repeated; the finished one is not.
    again = FakePool(2)
    assert run(fleet_of(jobs_file(40, 100), again, tmp_path)) is True
    assert again.started.keys() == {"b"}


def test_a_job_continues_when_its_processes_cannot_reach_each_other(tmp_path: Path) -> None:
    problems = [raised(RuntimeError("Connection closed by peer"))]

    def fault(job: str, method: str, done: int) -> None:
        if method == "train" and done >= 30 and problems and len(pool.started["a"]) == 3:
            raise problems.pop()

    pool, watch = FakePool(2, fault), Lines()
    assert run(fleet_of(jobs_file(150), pool, tmp_path, watch)) is True
    assert watch.have("a: RuntimeError: Connection closed by peer; it continues")


def test_two_fleets_cannot_use_one_folder(tmp_path: Path) -> None:
    first = fleet_of(jobs_file(10), FakePool(1), tmp_path)
    with pytest.raises(CommandError, match="is used by another fleet"):
        fleet_of(jobs_file(10), FakePool(1), tmp_path)
    assert run(first) is True
    fleet_of(jobs_file(10), FakePool(1), tmp_path)


@pytest.mark.parametrize("name", ["a/state.json", "fleet.json"])
@pytest.mark.parametrize("content", ["[", "[]"])
def test_a_damaged_file_is_named(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / name}: not ")):
        fleet_of(jobs_file(10), FakePool(1), tmp_path)


def test_policies_are_compared_by_the_same_times_and_complete_ones_are_kept(tmp_path: Path) -> None:
    file, fleets = jobs_file(30, 30), dict[Policy, Fleet]()
    asyncio.run(train_under_each(file, FakePool(2), tmp_path, Lines(), fleets))  # type: ignore[arg-type]
    assert list(fleets) == ["fair", "even", "one_unit"]
    alone = {name: job.state.step_s[1] for name, job in fleets["fair"].jobs.items()}
    for fleet in fleets.values():
        for name, job in fleet.jobs.items():
            assert job.state.slow_down == pytest.approx(job.state.elapsed_s / (30 * alone[name]))
    again, unused = dict[Policy, Fleet](), FakePool(2)
    asyncio.run(train_under_each(file, unused, tmp_path, Lines(), again))  # type: ignore[arg-type]
    assert not unused.started
    assert again["even"].seconds == fleets["even"].seconds
