"""Which jobs train, and which of them pause, if jobs that share units train in turns instead of at the same time.

If all jobs of a unit train at the same time, each of them is slowed down by their number, also a short one. In turns,
a unit trains the job with the earliest deadline (preemptive earliest deadline first). The deadline of a job is its
start + limit x its time alone / its priority. The limit is a slow-down, the same for all jobs that share units directly
or through other jobs: the smallest one with which all of them end before their deadlines. On a single unit no order of
the jobs has a smaller largest slow-down (Bender, Chakrabarti, Muthukrishnan: Flow and stretch metrics for scheduling
continuous job streams, SODA 1998); with jobs on several units this is a heuristic.

A job trains only while it has all of its units, so it may wait for one of them while another one has no work. All
functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

#: A unit that is used less than this by the jobs that train there can train another one as well.
MOSTLY_IDLE = 0.7
#: A job that trains gives its turn away only to a job whose deadline is earlier by more than this part of the limit, so
#: that small differences between step times do not make jobs alternate.
_MARGIN = 0.05
#: Relative accuracy of the limit.
_ACCURACY = 1e-3


@dataclass(frozen=True)
class TurnJob:
    """A job that shares units. units: those on which it trains.

    remaining_s: time to its last step if it trains without pauses, and no other job on its units. elapsed_s: running
    time so far. alone_s: time of all steps with the units of the fleet for itself. use: 0..1, of its units while it
    trains there without other jobs. ready: whether its processes can train now. change_s: seconds from now until it can
    train, because its units change; if its turn comes earlier, it keeps its units without work meanwhile.
    """

    units: tuple[int, ...]
    remaining_s: float
    elapsed_s: float
    alone_s: float
    priority: float = 1.0
    use: float = 1.0
    ready: bool = True
    change_s: float = 0.0

    def slow_down(self, end_s: float) -> float:
        """Slow-down if the last step is made in `end_s` seconds, without the priority."""
        return (self.elapsed_s + end_s) / self.alone_s

    def deadline_s(self, limit: float) -> float:
        """Seconds from now to the deadline with this limit of the slow-down times the priority."""
        return limit * self.alone_s / self.priority - self.elapsed_s


@dataclass(frozen=True)
class TurnPlan:
    """training: the jobs that train now. end_s: seconds until the last step of each job if the present jobs are trained
    in this order. slow_downs: those with these ends, by job, without priorities.
    """

    training: frozenset[str]
    end_s: dict[str, float]
    slow_downs: dict[str, float]


def plan_turns(jobs: Mapping[str, TurnJob], training: Collection[str] = ()) -> TurnPlan:
    """Plan the turns of all jobs. training: those that train at present."""
    chosen: set[str] = set()
    ends: dict[str, float] = {}
    for group in _sharing_units(jobs):
        order, group_ends = _best_order(group, training)
        chosen.update(_chosen(group, [name for name in order if group[name].ready]))
        ends.update(group_ends)
    return TurnPlan(
        frozenset(chosen),
        {name: ends[name] for name in jobs},
        {name: job.slow_down(ends[name]) for name, job in jobs.items()},
    )


def _sharing_units(jobs: Mapping[str, TurnJob]) -> list[dict[str, TurnJob]]:
    """The jobs in groups that have no unit in common."""
    groups: list[tuple[set[int], dict[str, TurnJob]]] = []
    for name, job in jobs.items():
        units, group = set(job.units), {name: job}
        separate = []
        for other_units, other in groups:
            if units & other_units:
                units, group = units | other_units, {**other, **group}
            else:
                separate.append((other_units, other))
        groups = [*separate, (units, group)]
    return [group for _, group in groups]


def _best_order(jobs: Mapping[str, TurnJob], training: Collection[str]) -> tuple[Sequence[str], dict[str, float]]:
    """The order by deadlines with the smallest limit that all jobs meet, and the seconds until their ends."""
    if len(jobs) == 1:
        return list(jobs), {name: job.change_s + job.remaining_s for name, job in jobs.items()}

    def order_at(limit: float) -> tuple[str, ...]:
        kept = limit * (1.0 - _MARGIN)
        return tuple(sorted(jobs, key=lambda name: jobs[name].deadline_s(kept if name in training else limit)))

    ends: dict[tuple[str, ...], dict[str, float]] = {}

    def worst(order: tuple[str, ...]) -> float:
        if order not in ends:
            ends[order] = _ends(jobs, order)
        return max(job.priority * job.slow_down(ends[order][name]) for name, job in jobs.items())

    low = max(job.priority * job.slow_down(job.change_s + job.remaining_s) for job in jobs.values())
    best = tuple(sorted(jobs, key=lambda name: jobs[name].alone_s / jobs[name].priority))
    high = worst(best)
    best = min(best, order_at(high), order_at(low), key=worst)
    while high - low > _ACCURACY * high:
        limit = (low + high) / 2
        order = order_at(limit)
        best = min(best, order, key=worst)
        if worst(order) <= limit:
            high = limit
        else:
            low = limit
    # Of the orders that are nearly as good as the best one, the one that keeps the turns of the jobs that train.
    order = order_at(high)
    return (order, ends[order]) if worst(order) <= worst(best) * (1.0 + _MARGIN) else (best, ends[best])


def _ends(jobs: Mapping[str, TurnJob], order: Sequence[str]) -> dict[str, float]:
    """Seconds until the last step of each job of a group if they train in this order."""
    if all(len(job.units) == 1 and job.use >= MOSTLY_IDLE for job in jobs.values()):
        return _ends_one_by_one(jobs, order)
    left = {name: jobs[name].remaining_s for name in order}
    changing = {name for name in order if jobs[name].change_s}
    ends: dict[str, float] = {}
    now = 0.0
    while left:
        busy = _chosen(jobs, list(left))
        for name in changing.intersection(busy):
            left[name] += max(0.0, jobs[name].change_s - now)
            changing.remove(name)
        # Jobs that together use more than all of a unit share its time.
        loads: dict[int, float] = {}
        for name in busy:
            for unit in jobs[name].units:
                loads[unit] = loads.get(unit, 0.0) + jobs[name].use
        slowness = {name: max(1.0, *(loads[unit] for unit in jobs[name].units)) for name in busy}
        seconds = min(left[name] * slowness[name] for name in busy)
        now += seconds
        for name in busy:
            left[name] -= seconds / slowness[name]
            if left[name] <= 1e-9 * (jobs[name].remaining_s + jobs[name].change_s):
                del left[name]
                ends[name] = now
    return ends


def _ends_one_by_one(jobs: Mapping[str, TurnJob], order: Sequence[str]) -> dict[str, float]:
    """The same as :func:`_ends`, in less time, for jobs that all use the same single unit, one at a time."""
    ends: dict[str, float] = {}
    now = 0.0
    for name in order:
        now = max(now, jobs[name].change_s) + jobs[name].remaining_s
        ends[name] = now
    return ends


def _chosen(jobs: Mapping[str, TurnJob], order: Sequence[str]) -> list[str]:
    """The jobs that train: in this order, each one whose units are all mostly idle."""
    loads: dict[int, float] = {}
    chosen = []
    for name in order:
        job = jobs[name]
        if all(loads.get(unit, 0.0) < MOSTLY_IDLE for unit in job.units):
            chosen.append(name)
            for unit in job.units:
                loads[unit] = loads.get(unit, 0.0) + job.use
    return chosen
