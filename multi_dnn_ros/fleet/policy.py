"""Which units each job has, and which jobs train now. All functions are pure.

The slow-down of a job is its predicted completion time, relative to that with one unit for itself (I. M. Kim: Improving
the efficiency of DNN model inference and training through distribution mechanisms, Hansung University). Policy `fair`
makes the slow-downs equal, as far as whole units can:

- Jobs on the same unit train in turns, the one with the earliest deadline first (preemptive earliest deadline first).
  The deadline of a job is its start + limit x its time alone / its priority. The limit is a slow-down, the same for all
  jobs of the unit: the smallest one with which all of them end before their deadlines. On a single unit no order of
  the jobs has a smaller largest slow-down (Bender, Chakrabarti, Muthukrishnan: Flow and stretch metrics for scheduling
  continuous job streams, SODA 1998).
- A job moves to another unit, gets a unit that is free, or gives one back if the largest slow-down that this changes
  falls by `GAIN`, although the change takes time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

from multi_dnn_ros.fleet.jobs_file import MOST_UNITS

#: `fair`: see above. The others are baselines, whose jobs train at the same time: on all units, or each on the unit
#: that had the fewest jobs.
Policy = Literal["fair", "even", "one_unit"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

#: Numbers of units, in the order in which a job got them.
Units = tuple[int, ...]
Assignment = dict[str, Units]

#: Smallest relative reduction of a slow-down for which units change.
GAIN = 0.02
#: A job that trains gives its turn away only to a job whose deadline is earlier by more than this part of the limit, so
#: that small differences between step times do not make jobs alternate.
_MARGIN = 0.05


@dataclass(frozen=True)
class JobView:
    """What a decision knows of a job.

    left, total: steps. elapsed_s: running time so far. step_s: measured seconds of a step by number of units, while no
    other job used them; without the key 1 the job is still to be measured. units: present ones; (): none yet. ready_s:
    seconds until its processes can train on these; 0: now. change_s: until they could on others. trains: it has its
    turn.
    """

    total: int
    left: int
    elapsed_s: float
    step_s: Mapping[int, float]
    priority: float = 1.0
    units: Units = ()
    ready_s: float = 0.0
    change_s: float = 0.0
    trains: bool = False

    @property
    def alone_s(self) -> float:
        """Time of all steps on one unit for itself."""
        return self.total * self.step_s[1]

    def work_s(self, units: Units) -> float:
        """Seconds until its last step on these units, without pauses.

        A number of units that was not measured is expected to be as efficient as the next smaller one, if that was
        faster than those before: so it is tried.
        """
        known = {count: step_s for count, step_s in self.step_s.items() if count <= len(units)}
        most = max(known)
        gain = len(units) / most if known[most] == min(known.values()) else 1.0
        start_s = self.ready_s if units == self.units else self.change_s
        return start_s + self.left * known[most] / gain

    def weighted_slow_down(self, end_s: float) -> float:
        """Slow-down times priority if the last step is made in `end_s` seconds."""
        return self.priority * (self.elapsed_s + end_s) / self.alone_s

    def deadline_s(self, limit: float) -> float:
        """Seconds from now until its slow-down times priority reaches the limit."""
        return limit * self.alone_s / self.priority - self.elapsed_s


@dataclass(frozen=True)
class Decision:
    """units: of each job. training: jobs that train now, and where. end_s: predicted seconds until the last step of
    each measured job; in policy `fair` only.
    """

    units: Assignment
    training: Assignment
    end_s: dict[str, float]


def decide(policy: Policy, jobs: Mapping[str, JobView], count: int) -> Decision:
    """Decide about all jobs that have begun and not ended. count: the number of units."""
    new = [name for name, job in jobs.items() if 1 not in job.step_s]
    if policy == "fair":
        units = _improved(jobs, _with_new(jobs, count), count)
        ends = _ends_in_turns(jobs, units)
    else:
        units, ends = _fixed_units(policy, jobs, count), {}
    training: Assignment = {}
    taken: set[int] = set()
    # New jobs first: they are measured for a few steps, each with its unit for itself.
    for name in dict.fromkeys([*new, *ends, *jobs]):
        is_ready = jobs[name].ready_s == 0.0 and units[name] == jobs[name].units
        if is_ready and not taken.intersection(units[name]):
            training[name] = units[name]
            if policy == "fair" or name in new:
                taken.update(units[name])
    return Decision(units, training, ends)


def _fixed_units(policy: Policy, jobs: Mapping[str, JobView], count: int) -> Assignment:
    """The units of the baselines. A job gets one unit at first, to be measured there."""
    units = {name: job.units for name, job in jobs.items()}
    for name, job in jobs.items():
        if not units[name]:
            units[name] = (min(range(count), key=lambda unit: sum(unit in each for each in units.values())),)
        if policy == "even" and 1 in job.step_s and len(units[name]) == 1:
            units[name] = tuple(range(min(count, MOST_UNITS)))
    return units


def _with_new(jobs: Mapping[str, JobView], count: int) -> Assignment:
    """The present units, and one for each job that has none: a free one, one of a job that has several, or the one
    whose jobs have the least work left.
    """
    units = {name: job.units for name, job in jobs.items()}
    known = {name: job.work_s(job.units) for name, job in jobs.items() if job.units and 1 in job.step_s}
    usual_s = sum(known.values()) / len(known) if known else 1.0
    for name in [name for name, held in units.items() if not held]:
        holders = [[other for other, held in units.items() if unit in held] for unit in range(count)]
        work_s = [sum(known.get(other, usual_s) for other in each) for each in holders]
        unit = min(range(count), key=lambda unit: (bool(holders[unit]), work_s[unit]))
        largest = max(units, key=lambda other: len(units[other]))
        if holders[unit] and len(units[largest]) > 1:
            unit = units[largest][-1]
            units[largest] = units[largest][:-1]
        units[name] = (unit,)
    return units


def _improved(jobs: Mapping[str, JobView], units: Assignment, count: int) -> Assignment:
    """Change the units of one job after another, as long as this helps."""
    now = _slow_downs(jobs, units)
    while True:
        best, best_slow_downs = None, now
        for changed in _changes(jobs, units, count):
            slow_downs = _slow_downs(jobs, changed)
            if _is_better(slow_downs, now, GAIN) and (best is None or _is_better(slow_downs, best_slow_downs)):
                best, best_slow_downs = changed, slow_downs
        if best is None:
            return units
        units, now = best, best_slow_downs


def _changes(jobs: Mapping[str, JobView], units: Assignment, count: int) -> Iterator[Assignment]:
    """Every change of the units of one measured job. Units of a job that has several are never shared."""
    holders = [[name for name, held in units.items() if unit in held] for unit in range(count)]
    for name, held in units.items():
        if 1 not in jobs[name].step_s:
            continue
        if len(held) > 1:
            yield {**units, name: held[:-1]}
        for unit in set(range(count)).difference(held):
            if all(len(units[other]) == 1 for other in holders[unit]):
                yield {**units, name: (unit,)}
            if not holders[unit] and holders[held[0]] == [name] and len(held) < MOST_UNITS:
                yield {**units, name: (*held, unit)}


def _slow_downs(jobs: Mapping[str, JobView], units: Assignment) -> list[float]:
    """The slow-downs times priorities with these units, the largest first."""
    ends = _ends_in_turns(jobs, units)
    return sorted((jobs[name].weighted_slow_down(end_s) for name, end_s in ends.items()), reverse=True)


def _is_better(slow_downs: Sequence[float], others: Sequence[float], gain: float = 0.0) -> bool:
    """Whether the first difference between two lists, the largest slow-downs first, is a reduction by this part."""
    for value, other in zip(slow_downs, others, strict=True):
        if value < other * (1.0 - gain):
            return True
        if value > other:
            return False
    return False


def _ends_in_turns(jobs: Mapping[str, JobView], units: Assignment) -> dict[str, float]:
    """Seconds until the last step of each measured job, on each unit in the order of the turns."""
    groups: dict[int, dict[str, float]] = {}
    for name, held in units.items():
        if 1 in jobs[name].step_s:
            groups.setdefault(held[0], {})[name] = jobs[name].work_s(held)
    return {name: end_s for work_s in groups.values() for name, end_s in _in_turns(jobs, work_s).items()}


def _in_turns(jobs: Mapping[str, JobView], work_s: Mapping[str, float]) -> dict[str, float]:
    """The same for the jobs of one unit. work_s: seconds of work left of each of them."""
    limit = smallest_limit(jobs, work_s)

    def ends(margin: float) -> dict[str, float]:
        limits = {name: limit * (1.0 - margin) if jobs[name].trains else limit for name in work_s}
        order = sorted(work_s, key=lambda name: jobs[name].deadline_s(limits[name]))
        return dict(zip(order, accumulate(work_s[name] for name in order), strict=True))

    kept = ends(_MARGIN)
    largest = max(jobs[name].weighted_slow_down(end_s) for name, end_s in kept.items())
    return kept if largest <= limit * (1.0 + _MARGIN) else ends(0.0)


def smallest_limit(jobs: Mapping[str, JobView], work_s: Mapping[str, float]) -> float:
    """The smallest possible largest slow-down times priority of the jobs of one unit. work_s: seconds of work of each.

    One job must end last, at a time that does not depend on the order; that with the smallest slow-down then is the
    best choice, and so on (Lawler: Optimal sequencing of a single machine subject to precedence constraints, 1973).
    """
    left, end_s, limit = set(work_s), sum(work_s.values()), 0.0
    while left:
        last = min(left, key=lambda name: jobs[name].weighted_slow_down(end_s))
        limit = max(limit, jobs[last].weighted_slow_down(end_s))
        left.remove(last)
        end_s -= work_s[last]
    return limit
