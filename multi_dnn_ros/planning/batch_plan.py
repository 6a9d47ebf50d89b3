"""How one batch is divided among units so that the last of them ends as early as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np

#: More units than this have too many subsets to list.
MOST_UNITS_FOR_SUBSETS = 8


class UnitTimes(Protocol):
    """What is known of a unit: :class:`multi_dnn_ros.planning.batch_table.BatchTable`, or a stand-in."""

    @property
    def largest(self) -> int: ...

    def predict_ms(self, batch: int) -> float: ...


class PlanError(ValueError):
    """The batch cannot be divided among the units; the message says what they can hold."""


@dataclass(frozen=True)
class Plan:
    """images, ms: of each unit by name, in the order of the units; units without work are in it with 0.

    search: how it was found.
    """

    images: Mapping[str, int]
    ms: Mapping[str, float]
    search: str

    @property
    def batch(self) -> int:
        """Images of all units."""
        return sum(self.images.values())

    @property
    def total_ms(self) -> float:
        """When the last unit ends."""
        return max(self.ms.values(), default=0.0)

    @property
    def used(self) -> tuple[str, ...]:
        """Units with at least one image."""
        return tuple(name for name, count in self.images.items() if count)


def plan_exact(units: Mapping[str, UnitTimes], batch: int) -> Plan:
    """The plan with the least predicted time, by dynamic programming over the units.

    After unit u the least time for b images is min over n of max(least time of the units before for b - n images, time
    of u for n images): O(units x batch^2). Of equally fast plans, units named earlier get more. PlanError.
    """
    times = {name: _times(of, batch) for name, of in units.items()}
    _check(units, batch)
    least = np.full(batch + 1, np.inf)
    least[0] = 0.0
    choices: list[np.ndarray] = []
    for own in times.values():
        longer = np.full(batch + 1, np.inf)
        choice = np.zeros(batch + 1, dtype=np.int64)
        for among in range(batch + 1):  # images of this unit and those before
            ends = np.maximum(least[among::-1], own[: among + 1])  # [n]: n images here, the others before
            choice[among] = np.argmin(ends)
            longer[among] = ends[choice[among]]
        least = longer
        choices.append(choice)
    images: dict[str, int] = {}
    left = batch
    for name, choice in zip(reversed(times), reversed(choices), strict=True):
        images[name] = int(choice[left])
        left -= images[name]
    return _plan(units, {name: images[name] for name in units}, "exact")


#: Of the greedy search, as the paper's code has them.
_MOST_STEP = 6
_MOST_BASES = 5
_SLACK = 1.05


def plan_greedy(units: Mapping[str, UnitTimes], batch: int) -> Plan:
    """The plan that the search of Lee, Choi and Park (KCC 2020, sjlee25/batch-partitioning) finds.

    Everything begins on the unit that is fastest alone. Images move from there, one at a time, to the unit that then
    ends first, unless that one would end more than 5 % after the unit they leave. Where no single image can move, two
    to six at once are tried; then the unit that ends last takes the place of the first one, five times. The best plan
    that was met is returned, so it is never worse than one unit alone. PlanError.
    """
    _check(units, batch)
    times = {name: _times(of, batch) for name, of in units.items()}
    images = _first_plan(units, times, batch)
    base = max(images, key=lambda name: images[name])
    best, best_ms = dict(images), _end(times, images)
    step, bases = 1, 0
    while bases < _MOST_BASES:
        receiver = _receiver(times, images, base, step)
        if receiver is None:
            step += 1
            if step > _MOST_STEP:
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


def plan_subsets(
    units: Mapping[str, UnitTimes], batch: int, search: str = "exact"
) -> dict[tuple[str, ...], Plan | None]:
    """The plan of every subset of the units, single ones first; None where the subset cannot hold the batch.

    With more than MOST_UNITS_FOR_SUBSETS units: single ones and all of them.
    """
    names = list(units)
    counts: Sequence[int] = range(1, len(names) + 1)
    if len(names) > MOST_UNITS_FOR_SUBSETS:
        counts = (1, len(names))
    plans: dict[tuple[str, ...], Plan | None] = {}
    for count in counts:
        for subset in combinations(names, count):
            try:
                plans[subset] = SEARCHES[search]({name: units[name] for name in subset}, batch)
            except PlanError:
                plans[subset] = None
    return plans


def capacity(units: Mapping[str, UnitTimes]) -> int:
    """The largest batch that the units can hold together."""
    return sum(of.largest for of in units.values())


def _check(units: Mapping[str, UnitTimes], batch: int) -> None:
    if not units:
        raise PlanError("there is no unit to divide the batch among")
    if batch < 1:
        raise PlanError(f"batch is {batch}; allowed: from 1")
    if capacity(units) < batch:
        held = ", ".join(f"{name} {of.largest}" for name, of in units.items())
        raise PlanError(
            f"batch is {batch}, but the units hold at most {capacity(units)} images by their tables ({held}); add a "
            "unit, or measure larger batches with `multi-dnn partition profile --max-batch`"
        )


def _times(unit: UnitTimes, batch: int) -> np.ndarray:
    """(batch + 1,) milliseconds by number of images; infinite above the unit's largest."""
    times = np.full(batch + 1, np.inf)
    for images in range(min(batch, unit.largest) + 1):
        times[images] = unit.predict_ms(images)
    return times


def _plan(units: Mapping[str, UnitTimes], images: Mapping[str, int], search: str) -> Plan:
    return Plan(dict(images), {name: units[name].predict_ms(count) for name, count in images.items()}, search)


def _end(times: Mapping[str, np.ndarray], images: Mapping[str, int]) -> float:
    return max(float(times[name][count]) for name, count in images.items())


def _first_plan(units: Mapping[str, UnitTimes], times: Mapping[str, np.ndarray], batch: int) -> dict[str, int]:
    """All on the unit that is fastest alone; where none holds all, the largest is filled and the others follow."""
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
    """The unit that takes `step` images from `base` and then ends first; None where none ends in time."""
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
