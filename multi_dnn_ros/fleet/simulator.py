"""Simulates a fleet of training jobs that share units fairly, or by one of two baselines.

Between two events (a job arrives or ends, a period ends) all step times are constant, so the simulation advances from
event to event, whatever the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from multi_dnn_ros.fleet.contention import JobLoad, Rates, alone_s, predict
from multi_dnn_ros.fleet.exclusive_times import ExclusiveTimes
from multi_dnn_ros.fleet.policy_result import PolicyResult
from multi_dnn_ros.fleet.shares import Allocation, Shares, Thresholds, even, used, whole
from multi_dnn_ros.fleet.sharing import POLICIES, TRIAL_PART, Decision, Sharing, first_shares
from multi_dnn_ros.fleet.slowdown import Progress
from multi_dnn_ros.fleet.step_times import Interconnect
from multi_dnn_ros.fleet.turn_plans import PlannedJob, Plans, record_times


@dataclass(frozen=True)
class SimulatedJob:
    """load: network and batch. steps: total number. arrives_s: when it is added. priority: weight of its slow-down.
    start_s: time from its arrival until its first step, which counts as running time.
    """

    name: str
    load: JobLoad
    steps: int
    arrives_s: float = 0.0
    priority: float = 1.0
    start_s: float = 0.0


@dataclass(frozen=True)
class Fleet:
    """units: number of units. time_slice_s: that of the units, see :func:`contention.predict`. period_s: time between
    decisions. change_s: pause of a job whose set of units changes. turns: whether jobs that share units train in turns
    under policy `fair`.
    """

    units: int
    interconnect: Interconnect
    time_slice_s: float = 0.0
    period_s: float = 30.0
    change_s: float = 1.0
    thresholds: Thresholds = field(default_factory=Thresholds)
    gain: float = 0.02
    turns: bool = False


@dataclass
class Sample:
    """State at the end of a period. slow_downs: predicted, by job."""

    time_s: float
    slow_downs: dict[str, float]
    use: list[float]
    reason: str


@dataclass
class Simulated(PolicyResult):
    """samples: in the order of time."""

    samples: list[Sample]


@dataclass
class _Running:
    job: SimulatedJob
    alone_s: float
    shares: Shares
    times: ExclusiveTimes
    done: float = 0.0
    paused_s: float = 0.0
    starting: bool = False
    has_turn: bool = True

    @property
    def computes(self) -> bool:
        return self.paused_s <= 0.0 and any(self.shares) and self.has_turn

    def progress(self, now: float, step_s: float) -> Progress:
        total = self.job.steps
        return Progress(min(int(self.done), total), total, now - self.job.arrives_s, step_s, self.alone_s)

    def planned(self, now: float) -> PlannedJob:
        progress = self.progress(now, 0.0)
        return PlannedJob(
            self.shares, progress.done, progress.total, progress.elapsed_s, self.alone_s, self.times, self.job.priority,
            ready=not self.starting, trains=self.has_turn,
        )  # fmt: skip


def simulate(
    jobs: Sequence[SimulatedJob], fleet: Fleet, policy: str, watch: Callable[[Sample], None] | None = None
) -> Simulated:
    """Run all jobs to their end. watch: called at the end of every period. Raises ValueError for an unknown policy."""
    if policy not in POLICIES:
        raise ValueError(f"policy {policy!r}: not one of {', '.join(POLICIES)}")
    simulation = _Simulation(fleet, policy)
    return simulation.run(jobs, watch)


class _Simulation:
    def __init__(self, fleet: Fleet, policy: str) -> None:
        self.fleet = fleet
        self.policy = policy
        self.turns = fleet.turns and policy == "fair"
        self.sharing = Sharing(fleet.thresholds, fleet.gain)
        self.running: dict[str, _Running] = {}
        self.loads: dict[str, JobLoad] = {}
        self.now = 0.0
        self.arrived = 0
        self.changes = self.reverted = 0
        self.undisturbed = False  # since the last decision: the same jobs trained, with the same shares

    def run(self, jobs: Sequence[SimulatedJob], watch: Callable[[Sample], None] | None) -> Simulated:
        waiting = sorted(jobs, key=lambda job: job.arrives_s)
        ended: dict[str, float] = {}
        samples: list[Sample] = []
        busy_s, next_decision, has_ended = 0.0, 0.0, False
        rates = self._rates()
        while waiting or self.running:
            due = waiting[0].arrives_s if waiting else math.inf
            if not self.running:
                self.now = max(self.now, due)
            end = min((self._time_to_end(run, rates) for run in self.running.values()), default=math.inf)
            pause = min((run.paused_s for run in self.running.values() if run.paused_s > 0.0), default=math.inf)
            # As in a real fleet, nothing is decided before all jobs have made steps with their present shares.
            decide = next_decision if self.running and self.policy == "fair" and pause == math.inf else math.inf
            until = min(due, self.now + end, max(decide, self.now), self.now + pause)
            step = until - self.now
            busy_s += sum(rates.use) * step
            resumed = self._advance(step, rates)
            self.now = until
            finished = [name for name, run in self.running.items() if run.done >= run.job.steps - 1e-6]
            for name in finished:
                run = self.running.pop(name)
                ended[name] = (self.now - run.job.arrives_s) / (run.job.steps * run.alone_s)
            has_ended = has_ended or bool(finished)
            if resumed or finished:  # the step times of all jobs are measured again
                next_decision = self.now + self._period_s(has_ended=has_ended)
            new = 0
            while waiting and waiting[0].arrives_s <= self.now:
                self._admit(waiting.pop(0))
                new += 1
            if self.turns and (finished or resumed):
                self.undisturbed = False
                self._give_turns()
            rates = self._rates()
            can_decide = new or (self.now >= next_decision and not any(run.paused_s for run in self.running.values()))
            if self.policy == "fair" and self.running and can_decide:
                is_over = self.now >= next_decision
                decision = self._decide(rates)
                rates = self._rates()
                has_ended = False
                next_decision = self.now + self._period_s(has_ended=False)
                if is_over:
                    samples.append(Sample(self.now, self._slow_downs(rates), rates.use, decision.reason))
                    if watch is not None:
                        watch(samples[-1])
            elif self.policy != "fair" and self.running and (new or finished or resumed):
                samples.append(Sample(self.now, self._slow_downs(rates), rates.use, "unchanged"))
        use = busy_s / (self.now * self.fleet.units) if self.now else 0.0
        return Simulated(self.policy, ended, use, self.now, self.changes, self.reverted, samples)

    def _period_s(self, *, has_ended: bool) -> float:
        """Time until the next decision. has_ended: a job has ended since the last one."""
        return self.fleet.period_s * (TRIAL_PART if self.sharing.has_trial or has_ended else 1.0)

    def _rates(self) -> Rates:
        return self._predict({name: run.shares for name, run in self.running.items() if run.computes})

    def _predict(self, allocation: Mapping[str, Shares]) -> Rates:
        fleet = self.fleet
        return predict(self.loads, allocation, fleet.units, fleet.interconnect, fleet.time_slice_s)

    def _time_to_end(self, run: _Running, rates: Rates) -> float:
        step_s = rates.step_s.get(run.job.name)
        return math.inf if step_s is None else max(0.0, (run.job.steps - run.done) * step_s)

    def _advance(self, seconds: float, rates: Rates) -> bool:
        """Returns whether the pause of a job has ended."""
        resumed = False
        for name, run in self.running.items():
            if name in rates.step_s:
                run.done += seconds / rates.step_s[name]
            if run.paused_s:
                run.paused_s = max(0.0, run.paused_s - seconds)
                if run.paused_s < 1e-9:
                    run.paused_s, run.starting, resumed = 0.0, False, True
        return resumed

    def _admit(self, job: SimulatedJob) -> None:
        fleet = self.fleet
        if self.policy == "fair":  # placed by the next decision
            shares = (0,) * fleet.units
        else:
            allocation = {name: run.shares for name, run in self.running.items()}
            shares = first_shares(self.policy, self.arrived, allocation, [0.0] * fleet.units)
        self.arrived += 1
        self.loads[job.name] = job.load
        alone = alone_s(job.load, fleet.units, fleet.interconnect)
        times = ExclusiveTimes()
        for measured in (whole(0, fleet.units), even(range(fleet.units), fleet.units)):  # as when it starts
            times.record(measured, self._predict({job.name: measured}).step_s[job.name])
        self.running[job.name] = _Running(
            job, alone, shares, times, paused_s=job.start_s, starting=job.start_s > 0.0, has_turn=not self.turns
        )

    def _plans(self) -> Plans:
        return Plans({name: run.planned(self.now) for name, run in self.running.items()}, self.fleet.change_s)

    def _give_turns(self) -> None:
        training = self._plans().plan().training
        for name, run in self.running.items():
            self.undisturbed &= run.has_turn == (name in training)
            run.has_turn = name in training

    def _slow_downs(self, rates: Rates) -> dict[str, float]:
        if self.turns:
            return self._plans().plan().slow_downs
        return {
            name: run.progress(self.now, rates.step_s[name]).slow_down
            for name, run in self.running.items()
            if name in rates.step_s
        }

    def _decide(self, rates: Rates) -> Decision:
        """Decide as the supervisor of a real fleet does, from step times and use of the last period."""
        allocation: Allocation = {name: run.shares for name, run in self.running.items()}
        if self.turns:
            decision = self._decide_in_turns(allocation, rates)
        else:
            settled = self._predict({name: run.shares for name, run in self.running.items() if any(run.shares)})
            slow_downs, remaining = {}, {}
            for name, step_s in settled.step_s.items():
                run = self.running[name]
                progress = run.progress(self.now, step_s)
                slow_downs[name] = progress.slow_down * run.job.priority
                remaining[name] = progress.remaining_slow_down * run.job.priority
            decision = self.sharing.decide(allocation, slow_downs, settled.use, remaining=remaining)
        for name in decision.jobs:
            run, shares = self.running[name], decision.allocation[name]
            if any(run.shares):
                self.changes += 1
                self.reverted += decision.reason == "reverted"
                if used(run.shares) != used(shares):
                    run.paused_s = self.fleet.change_s
            run.shares = shares
        if self.turns:
            self._give_turns()
        return decision

    def _decide_in_turns(self, allocation: Allocation, rates: Rates) -> Decision:
        training = {name: (run.shares, run.times) for name, run in self.running.items() if run.computes}
        record_times(training, rates.step_s, rates.use if self.undisturbed else None)
        plans = self._plans()
        decision = self.sharing.decide(
            allocation, plans.expect(allocation), rates.use, expect=plans.expect, work=plans.work
        )
        self.undisturbed = not decision.jobs
        return decision
