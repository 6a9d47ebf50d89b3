"""Decides the shares of every period: proposes a change, keeps it if it helped, and reverts it otherwise.

Algorithms 1 and 2 (:mod:`multi_dnn_ros.fleet.shares`) look one period back, and may alternate between two allocations
forever. Here every change is first a trial that lasts part of a period, and an allocation that did not help is not
proposed again while the set of jobs is the same. Other moves are tried when the algorithms propose nothing new.
A trial costs seconds of the job's time, twice if it is reverted, so changes that a simple estimate expects to be
reverted are not tried.

A kept change lowers the slow-down of the job that moved by at least `gain`, and a job that the change makes slower
remains less slowed down than the moved job was, so the number of changes is finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from multi_dnn_ros.fleet.shares import (
    TENTHS,
    Allocation,
    Shares,
    Thresholds,
    even_in_turn,
    manage,
    mean_slow_downs,
    moved,
    start_shares,
    used,
    whole,
    within,
)

#: `fair`: as above. The others are baselines. `even`: every job has equal shares of all units until it ends (with more
#: than ten units, of ten of them in turn). `one unit`: every job stays whole on the unit that had the fewest jobs.
Policy = Literal["fair", "even", "one unit"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

#: Part of a period after which a change is evaluated: short, because most changes do not help.
TRIAL_PART = 1 / 6
#: Changes are proposed for at most this many jobs in one period, those with the largest slow-downs.
_MAX_JOBS = 8


@dataclass(frozen=True)
class Decision:
    """Shares of the next period, and why: `start`, `own units`, `algorithm`, `alternative`, `reverted`, `kept` or
    `unchanged`. jobs: those whose shares change.
    """

    allocation: Allocation
    reason: str
    jobs: tuple[str, ...] = ()


@dataclass
class _Trial:
    before: Allocation
    tried: Allocation
    jobs: tuple[str, ...]
    slow_downs: dict[str, float]
    reason: str


@dataclass
class Sharing:
    """gain: minimum relative reduction of a slow-down for which a change is kept. waste: relative rise of the sum of
    all slow-downs that is accepted for a change. policy: except with `fair`, jobs keep their first shares.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    gain: float = 0.02
    waste: float = 0.0
    policy: Policy = "fair"
    _started: int = 0
    _jobs: frozenset[str] = frozenset()
    _rejected: set[tuple[tuple[str, Shares], ...]] = field(default_factory=set)
    _trial: _Trial | None = None

    @property
    def has_trial(self) -> bool:
        """Whether there is a trial whose result is still to be evaluated."""
        return self._trial is not None

    def decide(
        self,
        allocation: Mapping[str, Shares],
        slow_downs: Mapping[str, float],
        use: Sequence[float],
        limits: Mapping[str, Shares] | None = None,
        remaining: Mapping[str, float] | None = None,
    ) -> Decision:
        """The shares of the next period.

        allocation: shares by job, of which those of a new job are all 0. slow_downs: by job, times its priority; those
        of new jobs are not used. use: 0..1 of each unit. limits: maximum tenths per unit of some jobs, which ran out of
        memory with more. remaining: the parts of the slow-downs that are still to come; None: all of them.
        """
        limits = limits or {}
        jobs = frozenset(allocation)
        if jobs != self._jobs:
            self._jobs, self._trial = jobs, None
            self._rejected.clear()
        new = [job for job, shares in allocation.items() if not any(shares)]
        if new:
            return self._placed(allocation, new, use, limits)
        if self.policy != "fair":
            return Decision(dict(allocation), "unchanged")
        trial, self._trial = self._trial, None
        if trial is not None and trial.tried == allocation and not self._helped(trial, slow_downs):
            self._rejected.add(_key(trial.tried))
            return Decision(dict(trial.before), "reverted", trial.jobs)
        for proposal, reason in self._proposals(allocation, slow_downs, use):
            fitted = {job: within(shares, limits[job]) if job in limits else shares for job, shares in proposal.items()}
            proposal = {job: shares for job, shares in fitted.items() if shares is not None}
            changed = tuple(job for job in proposal if proposal[job] != allocation[job])
            if len(proposal) < len(allocation) or not changed or _key(proposal) in self._rejected:
                continue
            possible = _Trial(dict(allocation), proposal, changed, dict(slow_downs), reason)
            if not self._helped(possible, _expected(possible, remaining or slow_downs)):
                continue
            self._trial = possible
            return Decision(proposal, reason, changed)
        return Decision(dict(allocation), "kept" if trial is not None else "unchanged")

    def _placed(
        self, allocation: Mapping[str, Shares], new: Sequence[str], use: Sequence[float], limits: Mapping[str, Shares]
    ) -> Decision:
        placed = {job: shares for job, shares in allocation.items() if job not in new}
        for job in new:
            start = first_shares(self.policy, self._started, placed, use)
            self._started += 1
            fitted = within(start, limits[job]) if job in limits else start
            if fitted is None:
                raise ValueError(f"job {job}: limits {limits[job]} allow less than its whole batch")
            placed[job] = fitted
        return Decision({job: placed[job] for job in allocation}, "start", tuple(new))

    def _helped(self, trial: _Trial, now: Mapping[str, float]) -> bool:
        """Whether the changed jobs gained enough, and no other became as slow as the slowest of these had been."""
        before = trial.slow_downs
        worst = max(before[job] for job in trial.jobs)
        if len(trial.jobs) > 1:  # own units: all change at the same time
            return max(now.values()) < max(before.values()) * (1.0 - self.gain)
        harmed = [job for job in now if job not in trial.jobs and now[job] > before[job] * (1.0 + self.gain)]
        limit = worst * (1.0 - self.gain)
        # Once the parts of a job are small, spreading it further costs the others more than it gains: without this
        # condition, job after job spreads, and all become slower.
        wasteful = sum(now.values()) > sum(before.values()) * (1.0 + self.waste)
        return now[trial.jobs[0]] < limit and all(now[job] < limit for job in harmed) and not wasteful

    def _proposals(
        self, allocation: Mapping[str, Shares], slow_downs: Mapping[str, float], use: Sequence[float]
    ) -> Iterator[tuple[Allocation, str]]:
        """The proposal of Algorithm 1; then other moves of the job with the largest slow-down, then of the other jobs
        whose slow-down is above the mean (of any job, while there are fewer jobs than units).
        """
        has_spare_units = len(allocation) < len(use)
        proposed = manage(allocation, slow_downs, use, self.thresholds)
        yield proposed, "own units" if has_spare_units else "algorithm"
        mean = sum(slow_downs.values()) / max(1, len(slow_downs))
        for job in sorted(allocation, key=lambda name: -slow_downs[name])[:_MAX_JOBS]:
            if not has_spare_units and slow_downs[job] <= mean:
                return
            for shares in _moves(job, allocation, slow_downs, use):
                yield {**allocation, job: shares}, "alternative"


def first_shares(policy: str, number: int, allocation: Mapping[str, Shares], use: Sequence[float]) -> Shares:
    """Shares of the `number`-th job (from 0) at its start, in addition to `allocation`. use: 0..1 of each unit."""
    return even_in_turn(number, len(use)) if policy == "even" else start_shares(allocation, use)


def _moves(
    job: str, allocation: Mapping[str, Shares], slow_downs: Mapping[str, float], use: Sequence[float]
) -> Iterator[Shares]:
    """Other shares of one job: whole on one of the best units; up to five tenths, or one, moved to one of them."""
    shares = allocation[job]
    count = len(shares)
    others = {name: tenths for name, tenths in allocation.items() if name != job}
    means = mean_slow_downs(others, slow_downs) if others else [0.0] * count
    targets = sorted(range(count), key=lambda unit: (means[unit], use[unit]))[: max(3, math.isqrt(count))]
    source = max(used(shares), key=lambda unit: (means[unit], shares[unit]))
    for target in targets:
        yield whole(target, count)
    for tenths in (TENTHS // 2, 1):
        for target in targets:
            if target != source:
                yield moved(shares, source, target, min(tenths, shares[source]))


def _expected(trial: _Trial, remaining: Mapping[str, float]) -> dict[str, float]:
    """The slow-downs with the tried shares, if the steps of every job take as long as its tenths times the number of
    jobs on the unit. This holds for GPUs, where a job takes its share of the time also while it waits for its other
    units; on CPUs the others are hindered less. remaining: the parts of the slow-downs that are still to come.
    """
    before, after = _loads(trial.before), _loads(trial.tried)
    return {job: value + remaining[job] * (after[job] / before[job] - 1.0) for job, value in trial.slow_downs.items()}


def _loads(allocation: Mapping[str, Shares]) -> dict[str, int]:
    """By job: the tenths on its slowest unit, times the number of jobs on this unit."""
    jobs = [sum(1 for tenths in unit if tenths) for unit in zip(*allocation.values(), strict=True)]
    return {
        job: max(tenths * count for tenths, count in zip(shares, jobs, strict=True))
        for job, shares in allocation.items()
    }


def _key(allocation: Mapping[str, Shares]) -> tuple[tuple[str, Shares], ...]:
    return tuple(sorted(allocation.items()))
