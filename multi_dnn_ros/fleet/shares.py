"""Which part of its mini-batches each training job computes on each unit.

The method of Kim, I. M. (Improving the efficiency of DNN model inference and training through distribution mechanisms,
Hansung University), algorithms 1 and 2. The shares of a job (the data ratio of the paper) are tenths of its mini-batch,
one number per unit, with a sum of 10. All functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

TENTHS = 10
#: Tenths of one job on each unit.
Shares = tuple[int, ...]
Allocation = dict[str, Shares]


@dataclass(frozen=True)
class Thresholds:
    """slow_down: fraction by which the largest slow-down must exceed the mean of the others before shares change. use:
    difference in use (0..1) between the busiest and the least used unit above which shares are chosen by use.
    """

    slow_down: float = 0.1
    use: float = 0.2


def by_largest_remainder(weights: Sequence[float], total: int = TENTHS) -> Shares:
    """Whole numbers in proportion to `weights` (not negative, at least one above 0) with the sum `total`.

    Every number is the exact part rounded down or up (Hamilton's method); of equal remainders the first is rounded up.
    Raises ValueError for other weights.
    """
    if not weights or min(weights) < 0.0 or not 0.0 < sum(weights) < math.inf:
        raise ValueError(f"weights {list(weights)}: must be at least 0, with a finite sum above 0")
    largest = max(weights)  # divide by it first, so that neither very small nor very large weights lose digits
    scaled = [weight / largest for weight in weights]
    exact = [total * weight / sum(scaled) for weight in scaled]
    parts = [math.floor(part) for part in exact]
    order = sorted(range(len(parts)), key=lambda k: parts[k] - exact[k])
    for k in order[: total - sum(parts)]:
        parts[k] += 1
    return tuple(parts)


def even(units: Collection[int], count: int) -> Shares:
    """Equal shares on `units`, or on the first ten of them if there are more. count: the number of all units."""
    chosen = sorted(units)[:TENTHS]
    parts = by_largest_remainder([1.0] * len(chosen))
    tenths = dict(zip(chosen, parts, strict=True))
    return tuple(tenths.get(unit, 0) for unit in range(count))


def even_in_turn(number: int, count: int) -> Shares:
    """Equal shares of the `number`-th job (from 0) on all units; with more than ten units, on the next ten of them."""
    width = min(TENTHS, count)
    return even([(number * width + k) % count for k in range(width)], count)


def whole(unit: int, count: int) -> Shares:
    """The whole batch on one unit."""
    return even([unit], count)


def used(shares: Shares) -> list[int]:
    """The units with a share."""
    return [unit for unit, tenths in enumerate(shares) if tenths]


def start_shares(
    allocation: Mapping[str, Shares], use: Sequence[float], work: Mapping[str, float] | None = None
) -> Shares:
    """Shares of a new job: whole on the unit with the fewest tenths of other jobs; if several, on the least used. work:
    weight of the tenths of each job; None: all equal.
    """
    weights = dict.fromkeys(allocation, 1.0) if work is None else work
    taken = [sum(shares[unit] * weights[job] for job, shares in allocation.items()) for unit in range(len(use))]
    return whole(min(range(len(use)), key=lambda unit: (taken[unit], use[unit])), len(use))


def manage(
    allocation: Mapping[str, Shares],
    slow_downs: Mapping[str, float],
    use: Sequence[float],
    thresholds: Thresholds,
) -> Allocation:
    """Algorithm 1: the shares of the next period.

    allocation: current shares by job. slow_downs: by job, from 1 (as fast as alone) up. use: 0..1 of each unit. With
    fewer jobs than units every job gets units of its own, see :func:`own_units`. Otherwise a unit without shares, such
    as one that has just returned, is used first, see :func:`fill_idle`. Without such a unit only the job with the
    largest slow-down changes, and only if this slow-down exceeds the mean of the others by the threshold.
    """
    now = dict(allocation)
    if not now:
        return now
    if len(now) < len(use):
        return own_units(now, slow_downs, use)
    filled = fill_idle(now, slow_downs)
    if filled != now:
        return filled
    job = max(now, key=lambda name: slow_downs[name])
    others = [slow_downs[name] for name in now if name != job]
    if not others or slow_downs[job] <= (1.0 + thresholds.slow_down) * sum(others) / len(others):
        return now
    if max(use) - min(use) > thresholds.use:
        changed = by_use(now[job], use)
        if changed != now[job]:
            return {**now, job: changed}
    return {**now, job: by_slow_down(job, now, slow_downs)}


def own_units(allocation: Mapping[str, Shares], slow_downs: Mapping[str, float], use: Sequence[float]) -> Allocation:
    """Shares of fewer jobs than units: each job takes the least used unit that is left; then the remaining units are
    spread over the jobs.

    The job with the largest slow-down takes first. Each remaining unit goes to the job whose slow-down, divided by its
    number of units, is largest. A job prefers units that it uses already. Shares do not change if every job has units
    of its own and no unit is idle that a job could use: moving jobs between equal units gains nothing.
    """
    count = len(use)
    holders = [sum(1 for shares in allocation.values() if shares[unit]) for unit in range(count)]
    possible = min(count, TENTHS * len(allocation))
    if max(holders) <= 1 and sum(holders) == possible:
        return dict(allocation)
    left = list(range(count))
    units: dict[str, list[int]] = {job: [] for job in sorted(allocation, key=lambda name: -slow_downs[name])}

    def take(job: str) -> None:
        chosen = min(left, key=lambda unit: (not allocation[job][unit], use[unit]))
        left.remove(chosen)
        units[job].append(chosen)

    for job in units:
        take(job)
    while left:
        open_jobs = [job for job in units if len(units[job]) < TENTHS]
        if not open_jobs:
            break
        take(max(open_jobs, key=lambda name: slow_downs[name] / len(units[name])))
    return {job: even(units[job], count) for job in allocation}


def fill_idle(allocation: Mapping[str, Shares], slow_downs: Mapping[str, float]) -> Allocation:
    """Move the tenths of one job from the units that it has in common with other jobs to a unit without shares. Nothing
    changes if every unit has shares, or if no unit is used by several jobs.

    Of the jobs that have a unit in common with another one, it is the job with the largest slow-down. No unit loses
    its only job, so the number of idle units falls by one. Not in the paper, whose condition on the slow-down is
    not met when all jobs are slowed down alike: the jobs of a lost unit would stay where they are after it has
    returned.
    """
    holders = [sum(1 for shares in allocation.values() if shares[unit]) for unit in range(_count(allocation))]
    sharing = [job for job, shares in allocation.items() if any(holders[unit] > 1 for unit in used(shares))]
    if min(holders) > 0 or not sharing:
        return dict(allocation)
    job = max(sharing, key=lambda name: slow_downs[name])
    shares, idle = list(allocation[job]), holders.index(0)
    for unit in used(allocation[job]):
        if holders[unit] > 1:
            shares[idle] += shares[unit]
            shares[unit] = 0
    return {**allocation, job: tuple(shares)}


def by_use(shares: Shares, use: Sequence[float]) -> Shares:
    """Algorithm 2, by use: tenths in proportion to the free part of the units that the job uses and of the least used
    unit. Equal parts if no unit is free.
    """
    least_used = min(range(len(use)), key=lambda unit: use[unit])
    units = sorted({*used(shares), least_used})
    free = [max(0.0, 1.0 - use[unit]) for unit in units]
    parts = by_largest_remainder(free if sum(free) > 0.0 else [1.0] * len(units))
    tenths = dict(zip(units, parts, strict=True))
    return tuple(tenths.get(unit, 0) for unit in range(len(use)))


def by_slow_down(job: str, allocation: Mapping[str, Shares], slow_downs: Mapping[str, float]) -> Shares:
    """Algorithm 2, by slow-down: move tenths from the unit of the job's largest share to the unit with the smallest
    mean slow-down of the jobs that use it (0 for an idle unit).

    The number of tenths is the share times (slow-down - middle) / middle, rounded, at least one. The middle is halfway
    between the smallest and the largest slow-down of all jobs.
    """
    shares = allocation[job]
    source = max(range(len(shares)), key=lambda unit: shares[unit])
    means = mean_slow_downs(allocation, slow_downs)
    target = min(range(len(shares)), key=lambda unit: means[unit])
    middle = (max(slow_downs.values()) + min(slow_downs.values())) / 2
    part = max(0.0, slow_downs[job] - middle) / middle
    return moved(shares, source, target, math.floor(shares[source] * part + 0.5))


def moved(shares: Shares, source: int, target: int, tenths: int) -> Shares:
    """Shares after `tenths` (at least one, at most all of the source) have moved from one unit to another."""
    count = min(max(1, tenths), shares[source])
    if source == target:
        return shares
    changed = list(shares)
    changed[source] -= count
    changed[target] += count
    return tuple(changed)


def mean_slow_downs(allocation: Mapping[str, Shares], slow_downs: Mapping[str, float]) -> list[float]:
    """The mean slow-down of the jobs with a share of each unit; 0 for an idle unit."""
    means = []
    for unit in range(_count(allocation)):
        here = [slow_downs[job] for job, shares in allocation.items() if shares[unit]]
        means.append(sum(here) / len(here) if here else 0.0)
    return means


def within(shares: Shares, limits: Shares) -> Shares | None:
    """The shares, with the tenths above `limits` (by unit) moved to units with room, those with the largest shares
    first; None if the sum of the limits is below ten.
    """
    if sum(limits) < TENTHS:
        return None
    allowed = [min(tenths, limit) for tenths, limit in zip(shares, limits, strict=True)]
    excess = TENTHS - sum(allowed)
    for unit in sorted(range(len(shares)), key=lambda unit: -shares[unit]):
        taken = min(excess, limits[unit] - allowed[unit])
        allowed[unit] += taken
        excess -= taken
    return tuple(allowed)


def _count(allocation: Mapping[str, Shares]) -> int:
    """The number of units."""
    return len(next(iter(allocation.values())))
