"""Plans of the turns of running jobs: what decisions about their shares need, in a real and in a simulated fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from multi_dnn_ros.fleet.exclusive_times import ExclusiveTimes
from multi_dnn_ros.fleet.shares import TENTHS, Allocation, Shares, used
from multi_dnn_ros.fleet.turns import TurnJob, TurnPlan, plan_turns


@dataclass(frozen=True)
class PlannedJob:
    """A running job. shares: its present tenths by unit; all 0: not placed yet.

    done, total: steps. elapsed_s: running time so far. alone_s: time of a step with all units for itself. times: of its
    steps with its units for itself. ready: whether its processes can train now. trains: whether it has its turn.
    """

    shares: Shares
    done: int
    total: int
    elapsed_s: float
    alone_s: float
    times: ExclusiveTimes
    priority: float = 1.0
    ready: bool = True
    trains: bool = True

    def with_shares(self, shares: Shares, change_s: float = 0.0) -> TurnJob:
        """The job with these shares. change_s: seconds for which it cannot train if its set of units changes."""
        units = used(shares)
        changes = any(self.shares) and units != used(self.shares)
        return TurnJob(
            tuple(units), (self.total - self.done) * self.times.estimated_step_s(shares, self.alone_s), self.elapsed_s,
            self.total * self.alone_s, self.priority, self.times.estimated_use(shares), self.ready,
            change_s if changes else 0.0,
        )  # fmt: skip

    @property
    def work_s(self) -> float:
        """Seconds until its last step on one unit that it has for itself."""
        return (self.total - self.done) * self.times.estimated_step_s((TENTHS,), self.alone_s)


@dataclass(frozen=True)
class Plans:
    """jobs: by name. change_s: see PlannedJob.with_shares."""

    jobs: Mapping[str, PlannedJob]
    change_s: float = 0.0

    def plan(self, allocation: Mapping[str, Shares] | None = None) -> TurnPlan:
        """The turns of the known jobs that have shares: with their present ones, or with those of an allocation."""
        if allocation is None:
            allocation = {name: job.shares for name, job in self.jobs.items()}
        jobs = {
            name: self.jobs[name].with_shares(shares, self.change_s)
            for name, shares in allocation.items()
            if any(shares) and name in self.jobs
        }
        return plan_turns(jobs, [name for name in jobs if self.jobs[name].trains])

    def expect(self, allocation: Allocation) -> dict[str, float]:
        """The slow-downs times the priorities with these shares, see :class:`Sharing`."""
        return self.weighted(self.plan(allocation))

    def weighted(self, plan: TurnPlan) -> dict[str, float]:
        """The slow-downs of a plan times the priorities."""
        return {name: value * self.jobs[name].priority for name, value in plan.slow_downs.items()}

    @property
    def work(self) -> dict[str, float]:
        """Seconds until the last step of each job, see :class:`Sharing`."""
        return {name: job.work_s for name, job in self.jobs.items()}


def record_times(
    training: Mapping[str, tuple[Shares, ExclusiveTimes]], step_s: Mapping[str, float], use: Sequence[float] | None
) -> None:
    """Keep the step times of the jobs that have their units for themselves, and the use of these units.

    training: shares and known times of the jobs that train. step_s: seconds of a step, by job. use: 0..1 of each unit;
    None: not known for the present shares.
    """
    for name in with_own_units({name: shares for name, (shares, _) in training.items()}):
        shares, times = training[name]
        times.record(shares, step_s[name])
        if use is not None:
            times.record_use(shares, use)


def with_own_units(allocation: Mapping[str, Shares]) -> list[str]:
    """The jobs that have no unit in common with another one."""
    holders = [sum(1 for tenths in unit if tenths) for unit in zip(*allocation.values(), strict=True)]
    return [job for job, shares in allocation.items() if all(holders[unit] == 1 for unit in used(shares))]
