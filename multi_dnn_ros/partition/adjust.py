"""Divides a batch again by how long its units take when they run at the same time.

Tables are measured with one unit running. Together, units share the host's memory bandwidth, caches and cores, and
take longer, some more than others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from multi_dnn_ros.partition.executor import Array
from multi_dnn_ros.partition.run import BatchRun, run_rounds
from multi_dnn_ros.partition.session import BatchSession
from multi_dnn_ros.planning.batch_plan import SEARCHES, Plan, UnitTimes, replanned, slowed

#: Smallest predicted gain for which units are prepared for other numbers of images, which can take a minute.
_LEAST_GAIN = 0.01


@dataclass(frozen=True)
class AdjustedRun:
    """plan, done: the plan used, with predictions by `factors`, and its run. first: the run of the plan by the tables.

    factors: by unit, the time until it ends when all units run, over the time in its table; empty if a unit failed in
    the first run, which is then the only one. kept: whether the units have the same images in both plans, because
    another division would not be faster, or was not.
    """

    plan: Plan
    done: BatchRun
    first: BatchRun
    factors: Mapping[str, float]
    kept: bool


def run_adjusted(session: BatchSession, tables: Mapping[str, UnitTimes], images: Array, rounds: int) -> AdjustedRun:
    """Run the plan of the session, divide the batch again by the measured times, and run it again.

    The session then has the faster of both plans. Raises CommandError when no unit is left.
    """
    first_plan = session.plan
    first = run_rounds(session, images, rounds)
    if first.failures:
        return AdjustedRun(first_plan, first, first, {}, True)
    factors = {name: ms / first_plan.ms[name] for name, ms in _ends(first).items()}
    corrected = {name: slowed(tables[name], factors.get(name, 1.0)) for name in first_plan.images}
    same = replanned(first_plan, corrected)
    other = SEARCHES[first_plan.search](corrected, first_plan.batch)
    plan = other if other.total_ms < (1.0 - _LEAST_GAIN) * same.total_ms else same
    session.change_plan(plan)
    done = run_rounds(session, images, rounds)
    if plan is other and not done.failures and done.measured_ms > first.measured_ms:
        plan = same
        session.change_plan(plan)
        done = run_rounds(session, images, rounds)
    return AdjustedRun(plan, done, first, factors, plan is same)


def _ends(run: BatchRun) -> dict[str, float]:
    """When each unit ends, in milliseconds from the start of the batch; median over the rounds."""
    ends: dict[str, list[float]] = {}
    for shares in run.rounds:
        for share in shares:
            ends.setdefault(share.unit, []).append(share.end_ms)
    return {name: median(values) for name, values in ends.items()}
