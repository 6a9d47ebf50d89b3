"""Divides a batch again by how long its units take when they run at the same time.

Tables are measured with one unit running. Together, units share the host's memory bandwidth, caches and cores, and
take longer, some more than others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.partition.executor import Array
from multi_dnn_ros.partition.run import BatchRun, run_rounds
from multi_dnn_ros.partition.session import BatchSession
from multi_dnn_ros.planning.batch_plan import SEARCHES, Plan, UnitTimes, replanned, slowed_by

ReportProgress = Callable[[int, int], None]
#: Smallest predicted gain for which units are prepared for other numbers of images, which can take a minute.
_LEAST_GAIN = 0.01


@dataclass(frozen=True)
class AdjustedRun:
    """plan, done: the plan used and its run. first: the run of the first plan.

    If that plan was kept, `plan` has the predictions from before the run, because corrected ones would come from the
    run that they predict; otherwise it has predictions by `factors`. done.failures: also of units that failed while the
    other plan ran, after a complete first run.

    factors: by unit that has images in the first plan, the time until it ends when all units run, over the time in its
    table; empty if a unit failed in the first run, or if the batch was not to be divided again. tried: the other
    plan that was run; None if none is predicted to be faster.
    """

    plan: Plan
    done: BatchRun
    first: BatchRun
    factors: Mapping[str, float]
    tried: Plan | None

    @property
    def kept(self) -> bool:
        """Whether the first plan was used."""
        return self.plan is not self.tried


def run_as_planned(
    session: BatchSession, images: Array, rounds: int, progress: ReportProgress = lambda done, total: None
) -> AdjustedRun:
    """Run the plan of the session only. progress: see run_rounds. Raises CommandError when no unit is left."""
    done = run_rounds(session, images, rounds, progress)
    return AdjustedRun(session.plan, done, done, {}, None)


def run_adjusted(
    session: BatchSession,
    tables: Mapping[str, UnitTimes],
    images: Array,
    rounds: int,
    progress: ReportProgress = lambda done, total: None,
) -> AdjustedRun:
    """Run the plan of the session, divide the batch again by the measured times, and run it again.

    Divides the batch only once if it is on a single unit. The session then has the faster of both plans; the first one
    if a unit failed in the second run. progress: see run_rounds; it begins again for the second run. Raises
    CommandError when no unit is left for the first run.
    """
    first_plan = session.plan
    if len(first_plan.used) < 2:
        return run_as_planned(session, images, rounds, progress)
    first = run_rounds(session, images, rounds, progress)
    if first.failures:
        return AdjustedRun(first_plan, first, first, {}, None)
    factors = factors_of(first, first_plan, tables)
    corrected = slowed_by({name: tables[name] for name in first_plan.images}, factors)
    other = SEARCHES[first_plan.search](corrected, first_plan.batch)
    if other.total_ms >= (1.0 - _LEAST_GAIN) * replanned(first_plan, corrected).total_ms:
        return AdjustedRun(first_plan, first, first, factors, None)
    session.change_plan(other)
    done: BatchRun | None = None
    try:
        done = run_rounds(session, images, rounds, progress)
    except CommandError:
        if not _failures(session):  # not for lack of units: they do not agree about their outputs
            raise
    if done is not None and not done.failures and done.measured_ms <= first.measured_ms:
        return AdjustedRun(other, done, first, factors, other)
    session.change_plan(first_plan)
    return AdjustedRun(first_plan, replace(first, failures=_failures(session)), first, factors, other)


def _failures(session: BatchSession) -> tuple[str, ...]:
    return tuple(session.failures[name] for name in session.plan.images if name in session.failures)


def factors_of(run: BatchRun, plan: Plan, tables: Mapping[str, UnitTimes]) -> dict[str, float]:
    """By unit with images: the time until it ended in a complete run of `plan`, over the time in its table."""
    return {name: ms / tables[name].predict_ms(plan.images[name]) for name, ms in ends_ms(run).items()}


def ends_ms(run: BatchRun) -> dict[str, float]:
    """When each unit ends, in milliseconds from the start of the batch; median over the rounds."""
    ends: dict[str, list[float]] = {}
    for shares in run.rounds:
        for share in shares:
            ends.setdefault(share.unit, []).append(share.end_ms)
    return {name: median(values) for name, values in ends.items()}
