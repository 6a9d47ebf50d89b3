"""Divides one batch among units so that the last unit finishes as early as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from multi_dnn_ros.partition.tables import BatchTable, FloatArray

#: With more units than this there are too many subsets to list.
MAX_UNITS_FOR_SUBSETS = 8

#: Milliseconds of each unit by number of images, (batch + 1,); infinite for more than the unit holds.
Times = Mapping[str, FloatArray]


class PlanError(ValueError):
    """The batch cannot be divided among the units; the message names their largest batches."""


@dataclass(frozen=True)
class Plan:
    """A division of a batch. images, ms: by unit, in the order of the units; 0 for units without work."""

    images: Mapping[str, int]
    ms: Mapping[str, float]

    @property
    def total_ms(self) -> float:
        """Predicted time at which the last unit finishes."""
        return max(self.ms.values())

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """(first image, number of images) of each unit with images, consecutive in the order of the units."""
        ranges, first = {}, 0
        for unit, count in self.images.items():
            if count:
                ranges[unit] = (first, count)
                first += count
        return ranges


def make_plan(tables: Mapping[str, BatchTable], batch: int, search: str = "exact") -> Plan:
    """The plan for a batch by the times in the tables of the units. search: see SEARCHES. Raises PlanError."""
    if sum(table.largest for table in tables.values()) < batch:
        largest = ", ".join(f"{unit} {table.largest}" for unit, table in tables.items())
        raise PlanError(
            f"a batch of {batch} images exceeds what the units were measured for ({largest}); measure larger batches "
            "with `multi-dnn partition profile --max-batch`, or add a unit"
        )
    times = {unit: table.times_ms(batch) for unit, table in tables.items()}
    images = SEARCHES[search](times)
    return Plan(images, {unit: float(times[unit][count]) for unit, count in images.items()})


def plan_subsets(
    tables: Mapping[str, BatchTable], batch: int, search: str = "exact"
) -> dict[tuple[str, ...], Plan | None]:
    """The plans of all subsets of the units, single units first; None for a subset that cannot hold the batch.

    With more than MAX_UNITS_FOR_SUBSETS units, only of single units and of all together.
    """
    plans: dict[tuple[str, ...], Plan | None] = {}
    counts = range(1, len(tables) + 1) if len(tables) <= MAX_UNITS_FOR_SUBSETS else (1, len(tables))
    for subset in (each for count in counts for each in combinations(tables, count)):
        try:
            plans[subset] = make_plan({unit: tables[unit] for unit in subset}, batch, search)
        except PlanError:
            plans[subset] = None
    return plans


def search_exact(times: Times) -> dict[str, int]:
    """The division with the shortest predicted time, by dynamic programming over the units.

    The shortest time of units 1 to u for b images is the minimum over n of max(shortest time of units 1 to u - 1 for b
    - n images, time of unit u for n images): O(units x batch^2). Among equally fast divisions, earlier units get more
    images.
    """
    size = len(next(iter(times.values())))
    shortest = np.full(size, np.inf)  # by number of images, for the units so far
    shortest[0] = 0.0
    choices = []
    for unit_ms in times.values():
        extended, choice = np.empty(size), np.empty(size, dtype=np.int64)
        for count in range(size):  # images of this unit and of the previous ones
            ends = np.maximum(shortest[count::-1], unit_ms[: count + 1])  # [n]: n images on this unit
            choice[count] = np.argmin(ends)
            extended[count] = ends[choice[count]]
        shortest = extended
        choices.append(choice)
    images, left = dict.fromkeys(times, 0), size - 1
    for unit, choice in reversed(list(zip(times, choices, strict=True))):
        images[unit] = int(choice[left])
        left -= images[unit]
    return images


#: Constants of the greedy search, from the authors' code (sjlee25/batch-partitioning).
_MAX_STEP = 6
_MAX_BASES = 5
_SLACK = 1.05


def search_greedy(times: Times) -> dict[str, int]:
    """The division found by the greedy search of Lee, Choi and Park (KCC 2020).

    All images start on the unit that is fastest alone, the base. One image at a time moves from the base to the unit
    that then finishes first, unless that unit would finish more than 5 % later than the base. If no single image can
    move, moving two to six images together is tried; then the unit that finishes last becomes the base, up to five
    times. The best division seen is returned, so it is never slower than one unit alone.
    """
    images = _first_division(times)
    base = max(images, key=lambda unit: images[unit])
    best, best_ms = dict(images), _end_ms(times, images)
    step, bases = 1, 0
    while bases < _MAX_BASES:
        receiver = _receiver(times, images, base, step)
        if receiver is None:
            step += 1
            if step > _MAX_STEP:
                base = max(images, key=lambda unit: times[unit][images[unit]])
                step, bases = 1, bases + 1
            continue
        images[base] -= step
        images[receiver] += step
        step = 1
        if _end_ms(times, images) < best_ms:
            best, best_ms = dict(images), _end_ms(times, images)
    return best


SEARCHES: Mapping[str, Callable[[Times], dict[str, int]]] = {"exact": search_exact, "greedy": search_greedy}


def _end_ms(times: Times, images: Mapping[str, int]) -> float:
    return max(float(times[unit][count]) for unit, count in images.items())


def _first_division(times: Times) -> dict[str, int]:
    """All images on the unit that is fastest alone. If it does not hold them, the largest others next."""
    alone = min(times, key=lambda unit: times[unit][-1])
    largest = {unit: int(np.isfinite(unit_ms).sum()) - 1 for unit, unit_ms in times.items()}
    images, left = dict.fromkeys(times, 0), len(times[alone]) - 1
    for unit in sorted(times, key=lambda unit: (unit != alone, -largest[unit])):
        images[unit] = min(left, largest[unit])
        left -= images[unit]
    return images


def _receiver(times: Times, images: Mapping[str, int], base: str, step: int) -> str | None:
    """The unit that finishes first with `step` more images, taken from `base`; None if every unit would be too late."""
    if step > images[base]:
        return None
    ends = {unit: times[unit][count + step] for unit, count in images.items() if unit != base}
    receiver = min(ends, key=lambda unit: ends[unit], default=None)
    limit = _SLACK * times[base][images[base] - 1]
    return receiver if receiver is not None and ends[receiver] <= limit else None
