"""Decides the shares of the running jobs when a period is over, and records every decision."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from multi_dnn_ros.fleet.jobs_file import JobsFile
from multi_dnn_ros.fleet.launcher import Launcher
from multi_dnn_ros.fleet.running_job import RunningJob
from multi_dnn_ros.fleet.shares import TENTHS
from multi_dnn_ros.fleet.sharing import TRIAL_PART, Policy, Sharing
from multi_dnn_ros.fleet.usable_units import decide_for_usable


class Decisions:
    """entries: every decision, for the report. use: 0..1 for each unit in the last period."""

    def __init__(self, launcher: Launcher, file: JobsFile) -> None:
        self.entries: list[dict[str, Any]] = []
        self.use = [0.0] * len(launcher.units)
        self._launcher = launcher
        self._made_at = self._current_since = time.monotonic()
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

    def is_due(self, period_s: float, jobs: Iterable[RunningJob]) -> bool:
        """Whether the period, or the trial of the last change, is over.

        A change takes seconds, in which its job pauses and the others are faster. All placed jobs must have made steps
        with their present shares for the time of a trial, so that these steps are the ones that are compared.
        """
        now, trial_s = time.monotonic(), period_s * TRIAL_PART
        if not all(job.is_current for job in jobs if job.placed):
            self._current_since = now
            return False
        over = now - self._made_at >= (trial_s if self._sharing.has_trial else period_s)
        return over and now - self._current_since >= trial_s

    def make_due(self) -> None:
        """End the period now."""
        self._made_at = float("-inf")

    def decide(self, jobs: Mapping[str, RunningJob], seconds: float) -> str:
        """Decide the shares of all running jobs, and send those that change. seconds: since the start.

        Returns what has changed, in one line; empty: nothing. Decides nothing while a job has not reported under its
        present shares, unless another job is to be placed.
        """
        if not jobs or (all(job.placed for job in jobs.values()) and not all(job.is_current for job in jobs.values())):
            return ""
        self._made_at = time.monotonic()
        self.use = self._launcher.take_use()
        slow_downs = {
            name: progress.slow_down
            for name, job in jobs.items()
            if job.placed and (progress := job.progress) is not None
        }
        weighted = {name: slow_down * jobs[name].job.priority for name, slow_down in slow_downs.items()}
        no_shares = (0,) * len(self._launcher.units)
        allocation = {name: job.shares if job.placed else no_shares for name, job in jobs.items()}
        limits = {name: job.state.limits for name, job in jobs.items() if min(job.state.limits) < TENTHS}
        decision = decide_for_usable(
            self._sharing, self._launcher.usable, allocation, weighted, self.use, limits
        )  # fmt: skip
        for name in decision.jobs:
            job = jobs[name]
            assert job.processes is not None
            job.processes.send(decision.allocation[name])
            job.placed = True
        self.entries.append({
            "seconds": round(seconds, 3),
            "reason": decision.reason,
            "jobs": list(decision.jobs),
            "slow_downs": slow_downs,
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
