"""Decides the shares of every period: proposes a change, keeps it if it helped, and reverts it otherwise.

Algorithms 1 and 2 (:mod:`multi_dnn_ros.fleet.shares`) look one period back, and may alternate between two allocations
forever. Here every change is first a trial that lasts part of a period, and an allocation that did not help is not
proposed again while the set of jobs is the same. Other moves are tried when the algorithms propose nothing new.
A trial costs seconds of the job's time, twice if it is reverted, so changes that a simple estimate expects to be
reverted are not tried. If jobs train in turns, the slow-downs with any shares can be planned
(:mod:`multi_dnn_ros.fleet.turn_plans`) instead: then the best of the changes that are expected to help is tried,
further changes are among them, and a change is reverted if undoing it is expected to help.

A kept change lowers the slow-down of the job that moved by at least `gain`, and a job that the change makes slower
remains less slowed down than the moved job was, so the number of changes is finite.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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

#: The slow-downs of the present jobs with other shares, times their priorities.
Expect = Callable[[Allocation], Mapping[str, float]]

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
        *,
        expect: Expect | None = None,
        work: Mapping[str, float] | None = None,
    ) -> Decision:
        """The shares of the next period.

        allocation: shares by job, of which those of a new job are all 0. slow_downs: by job, times its priority; those
        of new jobs are not used. use: 0..1 of each unit. limits: maximum tenths per unit of some jobs, which ran out of
        memory with more. remaining: the parts of the slow-downs that are still to come; None: all of them. expect: how
        a proposed change is estimated before it is tried; None: from `remaining` and the number of jobs on each unit.
        work: seconds until the last step of each job if it had its units for itself, by which new jobs are placed;
        None: by number of tenths.
        """
        limits = limits or {}
        jobs = frozenset(allocation)
        if jobs != self._jobs:
            self._jobs, self._trial = jobs, None
            self._rejected.clear()
        new = [job for job, shares in allocation.items() if not any(shares)]
        if new:
            return self._placed(allocation, new, use, limits, work)
        if self.policy != "fair":
            return Decision(dict(allocation), "unchanged")
        trial, self._trial = self._trial, None
        if trial is not None and trial.tried == allocation and self._is_to_be_reverted(trial, slow_downs, expect):
            self._rejected.add(_key(trial.tried))
            return Decision(dict(trial.before), "reverted", trial.jobs)
        helpful = self._helpful(allocation, slow_downs, use, limits, remaining or slow_downs, expect)
        if expect is None:
            found = next(helpful, None)  # a simple estimate is no reason to prefer one of them
        else:
            found = min(helpful, key=lambda each: (max(each[1].values()), sum(each[1].values())), default=None)
        if found is None:
            return Decision(dict(allocation), "kept" if trial is not None else "unchanged")
        self._trial, _ = found
        return Decision(self._trial.tried, self._trial.reason, self._trial.jobs)

    def _helpful(
        self,
        allocation: Mapping[str, Shares],
        slow_downs: Mapping[str, float],
        use: Sequence[float],
        limits: Mapping[str, Shares],
        remaining: Mapping[str, float],
        expect: Expect | None,
    ) -> Iterator[tuple[_Trial, Mapping[str, float]]]:
        """The changes that are expected to be kept, with the slow-downs that are expected after them."""
        proposals = self._proposals(allocation, slow_downs, use)
        if expect is not None:
            proposals = itertools.chain(proposals, _moves_of_others(allocation, slow_downs, use))
        for proposal, reason in proposals:
            fitted = {job: within(shares, limits[job]) if job in limits else shares for job, shares in proposal.items()}
            proposal = {job: shares for job, shares in fitted.items() if shares is not None}
            changed = tuple(job for job in proposal if proposal[job] != allocation[job])
            if len(proposal) < len(allocation) or not changed or _key(proposal) in self._rejected:
                continue
            possible = _Trial(dict(allocation), proposal, changed, dict(slow_downs), reason)
            expected = expect(proposal) if expect is not None else _expected(possible, remaining)
            if self._helped(possible, expected):
                yield possible, expected

    def _placed(
        self,
        allocation: Mapping[str, Shares],
        new: Sequence[str],
        use: Sequence[float],
        limits: Mapping[str, Shares],
        work: Mapping[str, float] | None,
    ) -> Decision:
        placed = {job: shares for job, shares in allocation.items() if job not in new}
        for job in new:
            start = first_shares(self.policy, self._started, placed, use, work)
            self._started += 1
            fitted = within(start, limits[job]) if job in limits else start
            if fitted is None:
                raise ValueError(f"job {job}: limits {limits[job]} allow less than its whole batch")
            placed[job] = fitted
        return Decision({job: placed[job] for job in allocation}, "start", tuple(new))

    def _is_to_be_reverted(self, trial: _Trial, now: Mapping[str, float], expect: Expect | None) -> bool:
        """Whether a change did not help or, if a change can be predicted, whether undoing it is expected to help."""
        if expect is None:
            return not self._helped(trial, now)
        back = _Trial(trial.tried, trial.before, trial.jobs, dict(now), "reverted")
        return self._helped(back, expect(trial.before))

    def _helped(self, trial: _Trial, now: Mapping[str, float]) -> bool:
        """Whether the changed jobs gained enough, and no other became as slow as the slowest of these had been."""
        before = trial.slow_downs
        worst = max(before[job] for job in trial.jobs)
        if len(trial.jobs) > 1:  # they change at the same time
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


def first_shares(
    policy: str,
    number: int,
    allocation: Mapping[str, Shares],
    use: Sequence[float],
    work: Mapping[str, float] | None = None,
) -> Shares:
    """Shares of the `number`-th job (from 0) at its start, in addition to `allocation`. use: 0..1 of each unit. work:
    as for :func:`start_shares`.
    """
    return even_in_turn(number, len(use)) if policy == "even" else start_shares(allocation, use, work)


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


def _moves_of_others(
    allocation: Mapping[str, Shares], slow_downs: Mapping[str, float], use: Sequence[float]
) -> Iterator[tuple[Allocation, str]]:
    """Changes for the job with the largest slow-down: a job on one of its units moves to another unit, or a job there,
    or it itself, exchanges its shares with a job that has none of these units.
    """
    worst = max(allocation, key=lambda name: slow_downs[name])
    units = set(used(allocation[worst]))
    ranked = sorted(allocation, key=lambda name: -slow_downs[name])
    near = [job for job in ranked if units & set(used(allocation[job]))][:_MAX_JOBS]
    for job in near:
        if job != worst:
            for shares in _moves(job, allocation, slow_downs, use):
                yield {**allocation, job: shares}, "alternative"
    others = [job for job in reversed(ranked) if not units & set(used(allocation[job]))][:_MAX_JOBS]
    for job in near:
        for other in others:
            yield {**allocation, job: allocation[other], other: allocation[job]}, "alternative"


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
