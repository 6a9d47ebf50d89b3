"""Predicts step times and use of units for training jobs that share units.

A unit divides its time equally among the processes that compute on it at the same time (time slices of a GPU, the
scheduler of a CPU). The time that a job's part of a step takes there grows with the mean number of other jobs that are
computing there (approximate mean value analysis of processor sharing, Schweitzer 1979). A step lasts as long as its
slowest unit, plus the exchange of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from multi_dnn_ros.fleet.shares import TENTHS, Shares, even, used, whole
from multi_dnn_ros.fleet.step_times import Interconnect, NetworkTimes

Floats = npt.NDArray[np.float64]
_ROUNDS, _TOLERANCE = 500, 1e-6


@dataclass(frozen=True)
class JobLoad:
    """A training job as the model sees it. batch: images per step, over all units."""

    times: NetworkTimes
    batch: int


@dataclass(frozen=True)
class Rates:
    """step_s: seconds of one step, by job. use: 0..1 for each unit."""

    step_s: dict[str, float]
    use: list[float]


def predict(
    loads: Mapping[str, JobLoad], allocation: Mapping[str, Shares], units: int, interconnect: Interconnect
) -> Rates:
    """Step times and use while all jobs of `allocation` run."""
    jobs = list(allocation)
    if not jobs:
        return Rates({}, [0.0] * units)
    busy, idle = np.zeros((len(jobs), units)), np.zeros((len(jobs), units))
    exchange = np.zeros(len(jobs))
    for k, job in enumerate(jobs):
        load = loads[job]
        for unit in used(allocation[job]):
            busy[k, unit], idle[k, unit] = load.times.at(load.batch * allocation[job][unit] / TENTHS)
        exchange[k] = interconnect.all_reduce_s(len(used(allocation[job])), load.times.gradient_bytes)
    step = _steps(busy, idle, exchange)
    use = (busy / step[:, None]).sum(axis=0)
    return Rates(dict(zip(jobs, step.tolist(), strict=True)), np.minimum(use, 1.0).tolist())


def alone_s(load: JobLoad, units: int, interconnect: Interconnect) -> float:
    """Seconds of a step if the job has the units for itself: on one unit, or with even shares if that is faster."""
    candidates: Sequence[Shares] = (whole(0, units), even(range(units), units))
    return min(predict({"job": load}, {"job": shares}, units, interconnect).step_s["job"] for shares in candidates)


def _steps(busy: Floats, idle: Floats, exchange: Floats) -> Floats:
    """Fixed point of the step times (jobs,). busy, idle: (jobs, units) seconds of each job's part without others."""
    step = (busy + idle).max(axis=1) + exchange
    present = busy / step[:, None]
    for _ in range(_ROUNDS):
        residence = busy * (1.0 + present.sum(axis=0) - present)
        new = np.where(busy > 0.0, residence + idle, 0.0).max(axis=1) + exchange
        changed = float(np.max(np.abs(new - step) / new))
        step = 0.5 * step + 0.5 * new
        present = 0.5 * present + 0.5 * np.minimum(residence / step[:, None], 1.0)
        if changed < _TOLERANCE:
            break
    result: Floats = step
    return result
