"""Decides the shares of the running jobs when a period is over, and records every decision.

A decision uses only steps that all jobs made at the same time, with their present shares. While a job joins a unit,
which takes seconds on a GPU, the other jobs have more of that unit than later, and after the end of a job the others
become faster. So the step times of all jobs are measured again once every job trains with its present shares, and the
period, or the trial of the last change, begins then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from multi_dnn_ros.fleet.jobs_file import JobsFile
from multi_dnn_ros.fleet.launcher import Launcher
from multi_dnn_ros.fleet.running_job import RunningJob
from multi_dnn_ros.fleet.shares import TENTHS
from multi_dnn_ros.fleet.sharing import TRIAL_PART, Policy, Sharing
from multi_dnn_ros.fleet.usable_units import decide_for_usable

#: Steps from which the step time of a job is taken at least.
_MEASURED_STEPS = 3


class Decisions:
    """entries: every decision, for the report. use: 0..1 for each unit in the last period."""

    def __init__(self, launcher: Launcher, file: JobsFile) -> None:
        self.entries: list[dict[str, Any]] = []
        self.use = [0.0] * len(launcher.units)
        self._launcher = launcher
        self._since = time.monotonic()  # the start of the period
        self._step_times_discarded = self._jobs_ended = False
        self._sharing = Sharing(file.thresholds, file.gain, policy=file.policy)

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

    def discard_step_times(self, *, jobs_ended: bool = False) -> None:
        """Discard the measured step times. jobs_ended: decide after the time of a trial, not after a whole period."""
        self._step_times_discarded = True
        self._jobs_ended |= jobs_ended

    def begin_period(self, jobs: Mapping[str, RunningJob]) -> None:
        """Start a period if the step times were discarded and all jobs train with their present shares."""
        if self._step_times_discarded and all(job.is_current for job in jobs.values()):
            for job in jobs.values():
                assert job.processes is not None
                job.processes.send(job.shares)  # the same shares: only the measured step times are discarded
            self._since = time.monotonic()
            self._step_times_discarded = False

    def is_due(self, jobs: Mapping[str, RunningJob], period_s: float) -> bool:
        """Whether the period, or the trial of the last change, is over, or a job has no shares yet."""
        if not all(job.placed for job in jobs.values()):
            return True
        is_short = self._sharing.has_trial or self._jobs_ended
        over = time.monotonic() - self._since >= period_s * (TRIAL_PART if is_short else 1.0)
        return over and not self._step_times_discarded

    def decide(self, jobs: Mapping[str, RunningJob], seconds: float) -> str:
        """Decide the shares of all running jobs, and send those that change. seconds: since the start.

        Returns what has changed, in one line; empty: nothing. Decides nothing while a job has not been measured with
        its present shares, unless another job is to be placed.
        """
        is_measured = all(job.is_current and job.measured_steps >= _MEASURED_STEPS for job in jobs.values())
        if not jobs or (all(job.placed for job in jobs.values()) and not is_measured):
            return ""
        self._since, self._jobs_ended = time.monotonic(), False
        self.use = self._launcher.take_use()
        progress = {
            name: progress for name, job in jobs.items() if job.placed and (progress := job.progress) is not None
        }
        weighted = {name: each.slow_down * jobs[name].job.priority for name, each in progress.items()}
        remaining = {name: each.remaining_slow_down * jobs[name].job.priority for name, each in progress.items()}
        no_shares = (0,) * len(self._launcher.units)
        allocation = {name: job.shares if job.placed else no_shares for name, job in jobs.items()}
        limits = {name: job.state.limits for name, job in jobs.items() if min(job.state.limits) < TENTHS}
        decision = decide_for_usable(
            self._sharing, self._launcher.usable, allocation, weighted, self.use, limits, remaining
        )  # fmt: skip
        for name in decision.jobs:
            job = jobs[name]
            assert job.processes is not None
            job.processes.send(decision.allocation[name])
            job.placed = True
        if decision.jobs:
            self.discard_step_times()
        self.entries.append({
            "seconds": round(seconds, 3),
            "reason": decision.reason,
            "jobs": list(decision.jobs),
            "slow_downs": {name: each.slow_down for name, each in progress.items()},
            "use": self.use,
            "shares": {name: list(shares) for name, shares in decision.allocation.items()},
            "images_per_s": {name: job.job.global_batch / job.step_s for name, job in jobs.items() if job.step_s},
        })  # fmt: skip
        for job in jobs.values():
            job.save()
        changes = ", ".join(f"{name} {decision.allocation[name]}" for name in decision.jobs)
        return f"shares ({decision.reason}): {changes}" if changes else ""


def slow_down_points(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """(minutes, slow-down) of each job at each decision. entries: those of :class:`Decisions`."""
    points: dict[str, list[tuple[float, float]]] = {}
    for entry in entries:
        for name, value in entry["slow_downs"].items():
            points.setdefault(name, []).append((entry["seconds"] / 60, value))
    return points
