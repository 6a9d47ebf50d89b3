"""Divides one batch among units so that the last unit finishes as early as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Protocol, TypeVar

import numpy as np

#: With more units than this there are too many subsets to list.
MAX_UNITS_FOR_SUBSETS = 8


class UnitTimes(Protocol):
    """Times of one unit; :class:`multi_dnn_ros.planning.batch_table.BatchTable` conforms."""

    @property
    def largest(self) -> int: ...

    def predict_ms(self, batch: int) -> float: ...


_Times = TypeVar("_Times", bound=UnitTimes)


@dataclass(frozen=True)
class _Slowed:
    unit: UnitTimes
    factor: float

    @property
    def largest(self) -> int:
        return self.unit.largest

    def predict_ms(self, batch: int) -> float:
        return self.factor * self.unit.predict_ms(batch)


def slowed(unit: UnitTimes, factor: float) -> UnitTimes:
    """Times of a unit that takes `factor` times as long as in `unit`."""
    return _Slowed(unit, factor)


def slowed_by(units: Mapping[str, UnitTimes], factors: Mapping[str, float]) -> dict[str, UnitTimes]:
    """Times of units of which some were measured to take longer, by these factors; the others take the median factor.

    A unit without a factor shares the host with the others. By its table alone it would seem faster than all of them.
    """
    typical = median(factors.values())
    return {name: slowed(unit, factors.get(name, typical)) for name, unit in units.items()}


class PlanError(ValueError):
    """The batch cannot be divided among the units; the message names their largest batches."""


@dataclass(frozen=True)
class Plan:
    """A division of a batch. images, ms: by unit name, in the order of the units; 0 for units without work.

    search: name of the algorithm, see SEARCHES.
    """

    images: Mapping[str, int]
    ms: Mapping[str, float]
    search: str

    @property
    def batch(self) -> int:
        """Total number of images."""
        return sum(self.images.values())

    @property
    def total_ms(self) -> float:
        """Time at which the last unit finishes."""
        return max(self.ms.values(), default=0.0)

    @property
    def used(self) -> tuple[str, ...]:
        """Units with at least one image."""
        return tuple(name for name, count in self.images.items() if count)


def plan_exact(units: Mapping[str, UnitTimes], batch: int) -> Plan:
    """The plan with the shortest predicted time, by dynamic programming over the units.

    The shortest time of units 1 to u for b images is the minimum over n of max(shortest time of units 1 to u - 1 for b
    - n images, time of unit u for n images): O(units x batch^2). Among equally fast plans, earlier units get more
    images. Raises PlanError.
    """
    _check(units, batch)  # before memory is allocated per image
    times = {name: _times(unit, batch) for name, unit in units.items()}
    shortest = np.full(batch + 1, np.inf)  # by number of images, for the units so far
    shortest[0] = 0.0
    choices: list[np.ndarray] = []
    for unit_ms in times.values():
        extended = np.full(batch + 1, np.inf)
        choice = np.zeros(batch + 1, dtype=np.int64)
        for count in range(batch + 1):  # images of this unit and of the previous ones
            ends = np.maximum(shortest[count::-1], unit_ms[: count + 1])  # [n]: n images on this unit
            choice[count] = np.argmin(ends)
            extended[count] = ends[choice[count]]
        shortest = extended
        choices.append(choice)
    images: dict[str, int] = {}
    left = batch
    for name, choice in zip(reversed(times), reversed(choices), strict=True):
        images[name] = int(choice[left])
        left -= images[name]
    return _plan(units, {name: images[name] for name in units}, "exact")


#: Constants of the greedy search, from the authors' code.
_MAX_STEP = 6
_MAX_BASES = 5
_SLACK = 1.05


def plan_greedy(units: Mapping[str, UnitTimes], batch: int) -> Plan:
    """The plan found by the greedy search of Lee, Choi and Park (KCC 2020, sjlee25/batch-partitioning).

    All images start on the unit that is fastest alone, the base. One image at a time moves from the base to the unit
    that then finishes first, unless that unit would finish more than 5 % later than the base. If no single image can
    move, moving two to six images together is tried; then the unit that finishes last becomes the base, up to five
    times. The best plan seen is returned, so it is never slower than one unit alone. Raises PlanError.
    """
    _check(units, batch)
    times = {name: _times(unit, batch) for name, unit in units.items()}
    images = _first_plan(units, times, batch)
    base = max(images, key=lambda name: images[name])
    best, best_ms = dict(images), _end(times, images)
    step, bases = 1, 0
    while bases < _MAX_BASES:
        receiver = _receiver(times, images, base, step)
        if receiver is None:
            step += 1
            if step > _MAX_STEP:
                base = max(images, key=lambda name: times[name][images[name]])
                step, bases = 1, bases + 1
            continue
        images[base] -= step
        images[receiver] += step
        step = 1
        if _end(times, images) < best_ms:
            best, best_ms = dict(images), _end(times, images)
    return _plan(units, best, "greedy")


SEARCHES: Mapping[str, Callable[[Mapping[str, UnitTimes], int], Plan]] = {"exact": plan_exact, "greedy": plan_greedy}


def plan_together(
    units: Mapping[str, _Times],
    batch: int,
    search: str = "exact",
    together: Callable[[Mapping[str, _Times]], Mapping[str, UnitTimes]] = lambda units: units,
) -> Plan:
    """The plan by the times of the units while all of them compute, or that of one unit alone if this is faster.

    A unit that computes alone needs the times of its table, not those beside other units. together: as for
    plan_subsets. Raises PlanError.
    """
    plan = SEARCHES[search](together(units), batch)
    alone = {name: unit.predict_ms(batch) for name, unit in units.items() if unit.largest >= batch}
    fastest = min(alone, key=lambda name: alone[name], default=None)
    if fastest is None or alone[fastest] >= plan.total_ms:
        return plan
    return _plan(units, {name: batch if name == fastest else 0 for name in units}, search)


def replanned(plan: Plan, units: Mapping[str, UnitTimes]) -> Plan:
    """The same division, with times predicted by `units`."""
    return _plan(units, plan.images, plan.search)


def plan_subsets(
    units: Mapping[str, _Times],
    batch: int,
    search: str = "exact",
    subsets: Iterable[tuple[str, ...]] | None = None,
    together: Callable[[Mapping[str, _Times]], Mapping[str, UnitTimes]] = lambda units: units,
) -> dict[tuple[str, ...], Plan | None]:
    """The plans of subsets of the units; None if the batch is too large for the subset.

    together: returns the times of the units of a subset while all of them compute.
    subsets: None means all of them, single units first; with more than MAX_UNITS_FOR_SUBSETS units, only single units
    and all units together.
    """
    plans: dict[tuple[str, ...], Plan | None] = {}
    for subset in _all_subsets(list(units)) if subsets is None else subsets:
        try:
            plans[subset] = plan_together({name: units[name] for name in subset}, batch, search, together)
        except PlanError:
            plans[subset] = None
    return plans


def _all_subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    few = len(names) <= MAX_UNITS_FOR_SUBSETS
    for count in range(1, len(names) + 1) if few else (1, len(names)):
        yield from combinations(names, count)


def capacity(units: Mapping[str, UnitTimes]) -> int:
    """The largest batch for all units together."""
    return sum(unit.largest for unit in units.values())


def _check(units: Mapping[str, UnitTimes], batch: int) -> None:
    if not units:
        raise PlanError("there is no unit to divide the batch among")
    if batch < 1:
        raise PlanError(f"batch is {batch}; allowed: at least 1")
    if capacity(units) < batch:
        largest = ", ".join(f"{name} {unit.largest}" for name, unit in units.items())
        raise PlanError(
            f"batch is {batch}, but the units hold at most {capacity(units)} images by their tables ({largest}); add a "
            "unit, or measure larger batches with `multi-dnn partition profile --max-batch`"
        )


def _times(unit: UnitTimes, batch: int) -> np.ndarray:
    """(batch + 1,) milliseconds by number of images; infinite above the unit's largest batch."""
    times = np.full(batch + 1, np.inf)
    for images in range(min(batch, unit.largest) + 1):
        times[images] = unit.predict_ms(images)
    return times


def _plan(units: Mapping[str, UnitTimes], images: Mapping[str, int], search: str) -> Plan:
    return Plan(dict(images), {name: units[name].predict_ms(count) for name, count in images.items()}, search)


def _end(times: Mapping[str, np.ndarray], images: Mapping[str, int]) -> float:
    return max(float(times[name][count]) for name, count in images.items())


def _first_plan(units: Mapping[str, UnitTimes], times: Mapping[str, np.ndarray], batch: int) -> dict[str, int]:
    """All images on the unit that is fastest alone; if no unit can hold all, fill the units, the largest first."""
    images = dict.fromkeys(units, 0)
    alone = min(units, key=lambda name: times[name][batch])
    if np.isfinite(times[alone][batch]):
        images[alone] = batch
        return images
    left = batch
    for name in sorted(units, key=lambda name: -units[name].largest):
        images[name] = min(left, units[name].largest)
        left -= images[name]
    return images


def _receiver(times: Mapping[str, np.ndarray], images: Mapping[str, int], base: str, step: int) -> str | None:
    """The unit that finishes first with `step` more images, taken from `base`; None if every unit would be too late."""
    if step > images[base]:
        return None
    limit = _SLACK * times[base][images[base] - 1]
    ends = {
        name: float(times[name][count + step])
        for name, count in images.items()
        if name != base and count + step < len(times[name])
    }
    receiver = min(ends, key=lambda name: ends[name], default=None)
    return receiver if receiver is not None and ends[receiver] <= limit else None
