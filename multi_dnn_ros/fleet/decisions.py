"""Decides the shares of the running jobs when a period is over, and records every decision.

A decision uses only steps that all jobs made at the same time, with their present shares. While a job joins a unit,
which takes seconds on a GPU, the other jobs have more of that unit than later, and after the end of a job the others
become faster. So the step times of all jobs are measured again once every job trains with its present shares, and the
period, or the trial of the last change, begins then.

If jobs train in turns (:mod:`multi_dnn_ros.fleet.turns`), this concerns the jobs that train. Turns are planned again
with every decision, and whenever a job has ended, got other shares, or is ready to train.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from multi_dnn_ros.fleet.jobs_file import JobsFile
from multi_dnn_ros.fleet.launcher import Launcher
from multi_dnn_ros.fleet.running_job import RunningJob
from multi_dnn_ros.fleet.shares import TENTHS, Allocation, Shares, used
from multi_dnn_ros.fleet.sharing import TRIAL_PART, Decision, Policy, Sharing
from multi_dnn_ros.fleet.turn_plans import Plans, record_times
from multi_dnn_ros.fleet.usable_units import decide_for_usable

#: Steps from which the step time of a job is taken at least.
_MEASURED_STEPS = 3


class Decisions:
    """entries: every decision, for the report. use: 0..1 for each unit in the last period. in_turns: whether jobs that
    share units train in turns; a later change of this in the file has no effect.
    """

    def __init__(self, launcher: Launcher, file: JobsFile) -> None:
        self.entries: list[dict[str, Any]] = []
        self.use = [0.0] * len(launcher.units)
        self._launcher = launcher
        self._since = time.monotonic()  # the start of the period
        self._step_times_discarded = self._decide_soon = False
        self._sharing = Sharing(file.thresholds, file.gain, policy=file.policy)
        self.in_turns = file.turns and file.policy == "fair"
        self._planned_for: tuple[Any, ...] = ()  # the state of the jobs for which turns were planned
        self._undisturbed = False  # since the last decision, the same jobs have trained with the same shares
        self._change_s = 0.0  # how long the last change of the units of a job took
        self._changed_at: float | None = None

    @property
    def policy(self) -> Policy:
        """The policy in force; a later change of it in the file has no effect."""
        return self._sharing.policy

    def discard_trials(self, file: JobsFile) -> None:
        """Discard the results of trials, which are valid only for the former units; use the thresholds of the file."""
        self._sharing = Sharing(file.thresholds, file.gain, policy=self.policy)

    def change_thresholds(self, file: JobsFile) -> None:
        """Continue with the thresholds of the file."""
        self._sharing.thresholds, self._sharing.gain = file.thresholds, file.gain

    def discard_step_times(self, *, decide_soon: bool = False) -> None:
        """Discard the measured step times. decide_soon: decide after the time of a trial, not after a whole period."""
        self._step_times_discarded = True
        self._undisturbed = False
        self._changed_at = None  # the time until all jobs train again is not that of a change only
        self._decide_soon |= decide_soon

    def begin_period(self, jobs: Mapping[str, RunningJob]) -> None:
        """Start a period if the step times were discarded and all jobs train with their present shares."""
        if self._step_times_discarded and all(job.is_current for job in jobs.values()):
            for job in jobs.values():
                if job.trains:
                    assert job.processes is not None
                    job.processes.send(job.shares)  # the same shares: only the measured step times are discarded
            self._since = time.monotonic()
            if self._changed_at is not None:
                self._change_s, self._changed_at = self._since - self._changed_at, None
            self._step_times_discarded = False

    def is_due(self, jobs: Mapping[str, RunningJob], period_s: float) -> bool:
        """Whether the period, or the trial of the last change, is over, or a job has no shares yet."""
        if not all(job.placed for job in jobs.values()):
            return True
        is_short = self._sharing.has_trial or self._decide_soon
        over = time.monotonic() - self._since >= period_s * (TRIAL_PART if is_short else 1.0)
        return over and not self._step_times_discarded

    def decide(self, jobs: Mapping[str, RunningJob], seconds: float) -> str:
        """Decide the shares of all running jobs, and send those that change. seconds: since the start.

        Returns what has changed, in one line; empty: nothing. Decides nothing while a job has not been measured with
        its present shares, unless another job is to be placed.
        """
        is_measured = all(
            job.is_current and (job.measured_steps >= _MEASURED_STEPS or not job.trains) for job in jobs.values()
        )
        if not jobs or (all(job.placed for job in jobs.values()) and not is_measured):
            return ""
        self._since, self._decide_soon = time.monotonic(), False
        self.use = self._launcher.take_use()
        if self.in_turns and is_measured:
            self._record_times(jobs)
        self._undisturbed = True
        no_shares = (0,) * len(self._launcher.units)
        allocation = {name: job.shares if job.placed else no_shares for name, job in jobs.items()}
        limits = {name: job.limits for name, job in jobs.items() if min(job.limits) < TENTHS}
        decide = self._decide_in_turns if self.in_turns else self._decide_at_once
        decision, slow_downs = decide(jobs, allocation, limits)
        rates = _images_per_s(jobs)
        text = self._apply(jobs, {name: decision.allocation[name] for name in decision.jobs})
        self._enter(jobs, seconds, decision.reason, decision.jobs, slow_downs, rates)
        for job in jobs.values():
            job.save()
        changes = ", ".join(f"{name} {decision.allocation[name]}" for name in decision.jobs)
        return "; ".join(filter(None, (f"shares ({decision.reason}): {changes}" if changes else "", text)))

    def give_turns(self, jobs: Mapping[str, RunningJob], seconds: float) -> str:
        """Let other jobs train if jobs have ended, been placed or become ready since turns were planned. Does nothing
        unless jobs train in turns.

        Returns what has changed, in one line; empty: nothing. seconds: since the start.
        """
        placed = {name: job for name, job in jobs.items() if job.placed}
        if not self.in_turns or self._planned_for == _state(placed):
            return ""
        rates = _images_per_s(placed)
        text = self._apply(placed, {})
        if text:
            self.use = self._launcher.take_use()
            self._enter(placed, seconds, "turns", (), _slow_downs(placed), rates)
        return text

    def _decide_at_once(
        self, jobs: Mapping[str, RunningJob], allocation: Allocation, limits: Mapping[str, Shares]
    ) -> tuple[Decision, dict[str, float]]:
        """The decision, and the slow-downs without priorities, if all jobs train at the same time."""
        progress = {
            name: progress for name, job in jobs.items() if job.placed and (progress := job.progress) is not None
        }
        weighted = {name: each.slow_down * jobs[name].job.priority for name, each in progress.items()}
        remaining = {name: each.remaining_slow_down * jobs[name].job.priority for name, each in progress.items()}
        decision = decide_for_usable(
            self._sharing, self._launcher.usable, allocation, weighted, self.use, limits, remaining
        )  # fmt: skip
        return decision, {name: each.slow_down for name, each in progress.items()}

    def _decide_in_turns(
        self, jobs: Mapping[str, RunningJob], allocation: Allocation, limits: Mapping[str, Shares]
    ) -> tuple[Decision, dict[str, float]]:
        """The same if they train in turns."""
        plans = self._plans(jobs)
        plan = plans.plan()
        decision = decide_for_usable(
            self._sharing, self._launcher.usable, allocation, plans.weighted(plan), self.use, limits,
            expect=plans.expect, work=plans.work if len(plans.jobs) == len(jobs) else None,
        )  # fmt: skip
        return decision, plan.slow_downs

    def _plans(self, jobs: Mapping[str, RunningJob]) -> Plans:
        planned = {name: job.planned() for name, job in jobs.items()}
        return Plans({name: job for name, job in planned.items() if job.total}, self._change_s)

    def _record_times(self, jobs: Mapping[str, RunningJob]) -> None:
        training = {name: job for name, job in jobs.items() if job.placed and job.trains}
        record_times(
            {name: (job.shares, job.state.times) for name, job in training.items()},
            {name: job.step_s for name, job in training.items()},
            self.use if self._undisturbed else None,
        )

    def _apply(self, jobs: Mapping[str, RunningJob], changed: Mapping[str, Shares]) -> str:
        """Send the shares and turns that change. Returns which turns have changed."""
        changes_units = any(
            jobs[name].placed and used(jobs[name].shares) != used(shares) for name, shares in changed.items()
        )
        before = {name for name, job in jobs.items() if job.placed and job.trains}
        training, ends = set(jobs), dict[str, float]()
        if self.in_turns:
            plans = self._plans(jobs)
            plan = plans.plan({name: changed.get(name, job.shares) for name, job in jobs.items()})
            training, ends = set(plan.training), plan.end_s
        # Jobs that pause get their commands first. The others do not wait until they have paused, after their present
        # steps: a job that is slow to pause, or hangs, must not delay the others.
        for name in sorted(jobs, key=lambda name: name in training):
            job = jobs[name]
            assert job.processes is not None
            has_turn, job.processes.has_turn = job.processes.has_turn, name in training
            if name in changed or has_turn != job.processes.has_turn:
                job.processes.send(changed.get(name, job.shares))
            job.placed |= name in changed
        if changed or before != training:
            self.discard_step_times()
        if changes_units:
            self._changed_at = time.monotonic()
        if not self.in_turns:
            return ""
        self._planned_for = _state(jobs)
        for name, end_s in ends.items():
            jobs[name].wait_s = max(0.0, end_s - plans.jobs[name].with_shares(jobs[name].shares).remaining_s)
        changes = (("train", training - before), ("pause", before - training))
        return "; ".join(f"{what}: {', '.join(sorted(names))}" for what, names in changes if names)

    def _enter(
        self, jobs: Mapping[str, RunningJob], seconds: float, reason: str, changed: Sequence[str],
        slow_downs: Mapping[str, float], rates: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Record a decision. rates: images per second of the jobs that trained until now."""
        self.entries.append({
            "seconds": round(seconds, 3),
            "reason": reason,
            "jobs": list(changed),
            "slow_downs": dict(slow_downs),
            "use": self.use,
            "shares": {name: list(job.shares) for name, job in jobs.items()},
            "images_per_s": dict(rates),
            **({"training": [name for name, job in jobs.items() if job.trains]} if self.in_turns else {}),
        })  # fmt: skip


def _images_per_s(jobs: Mapping[str, RunningJob]) -> dict[str, float]:
    """Of the jobs that train."""
    return {name: job.job.global_batch / job.step_s for name, job in jobs.items() if job.step_s and job.trains}


def _state(jobs: Mapping[str, RunningJob]) -> tuple[Any, ...]:
    """What turns depend on, besides the progress of the jobs."""
    return tuple((name, job.starts, job.shares, job.steps is not None) for name, job in jobs.items())


def _slow_downs(jobs: Mapping[str, RunningJob]) -> dict[str, float]:
    return {name: progress.slow_down for name, job in jobs.items() if (progress := job.progress) is not None}


def slow_down_points(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """(minutes, slow-down) of each job at each decision. entries: those of :class:`Decisions`."""
    points: dict[str, list[tuple[float, float]]] = {}
    for entry in entries:
        for name, value in entry["slow_downs"].items():
            points.setdefault(name, []).append((entry["seconds"] / 60, value))
    return points
