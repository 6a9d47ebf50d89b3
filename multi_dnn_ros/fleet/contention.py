"""Predicts step times and use of units for training jobs that share units.

A unit divides its time equally among the processes that compute on it at the same time (time slices of a GPU, the
scheduler of a CPU). The time that a job's part of a step takes there grows with the mean number of other jobs that are
computing there (approximate mean value analysis of processor sharing, Schweitzer 1979). A step lasts as long as its
slowest unit, plus the exchange of gradients.

Two kinds of units differ in what a process does while it waits for the other units of its job:

- Without a time slice (`time_slice_s` = 0: processes on CPUs that exchange gradients by gloo) it sleeps, and takes no
  time of the unit.
- With a time slice (GPUs and NCCL, whose kernels poll for the data of the other units) it takes its time slices as if
  it computed. It leaves the unit to others only while its host is idle or has given it no work. A process that has new
  work must wait for a time slice of each other process. This happens in each of the 2 (n - 1) steps of a ring
  all-reduce over n units, which need the data that another unit has just sent, and in the _TURNS points of a step at
  which its host waits for the unit.

The model of time slices was fitted to one run of eight jobs on four H200 (results/fleet_4gpus_prediction.json). Since
then a rank prepares its next batch before it reads the loss, so that its host waits while the unit has work, and _TURNS
may be too high. The model nevertheless predicted a later run of five jobs on two H100, to which nothing was fitted,
within 12 % (results/fleet_2gpus_prediction.json).
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
#: Points of a step at which the host waits for the unit, so that the unit then has no work of the job. In the run to
#: which the model was fitted: it read the loss, and copied the indices of the next batch.
_TURNS = 2


@dataclass(frozen=True)
class JobLoad:
    """A training job as the model sees it. batch: images per step, over all units."""

    times: NetworkTimes
    batch: int


@dataclass(frozen=True)
class Rates:
    """step_s: seconds of one step, by job. use: 0..1 for each unit, as the unit reports it: a GPU counts the kernels
    that wait for other units.
    """

    step_s: dict[str, float]
    use: list[float]


def predict(
    loads: Mapping[str, JobLoad],
    allocation: Mapping[str, Shares],
    units: int,
    interconnect: Interconnect,
    time_slice_s: float = 0.0,
) -> Rates:
    """Step times and use while all jobs of `allocation` run. time_slice_s: of the units, see above."""
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
    if time_slice_s:
        step, present = _sliced_steps(busy, idle, exchange, time_slice_s)
    else:
        step = _steps(busy, idle, exchange)
        present = busy / step[:, None]
    use = np.minimum(present.sum(axis=0), 1.0)
    return Rates(dict(zip(jobs, step.tolist(), strict=True)), use.tolist())


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


def _sliced_steps(busy: Floats, idle: Floats, exchange: Floats, time_slice_s: float) -> tuple[Floats, Floats]:
    """Fixed point of the step times (jobs,) with time slices, and the part of the time (jobs, units) in which each job
    has work on each unit. The arguments are those of :func:`_steps`.
    """
    uses = busy > 0.0
    count = uses.sum(axis=1)
    ring_steps = 2 * (count - 1)
    step = (busy + idle).max(axis=1) + exchange
    present = np.where(uses, 1.0 - idle / step[:, None], 0.0)
    for _ in range(_ROUNDS):
        others = np.where(uses, present.sum(axis=0) - present, 0.0)
        on_units = np.where(uses, busy * (1.0 + others) + idle + _TURNS * time_slice_s * others, 0.0).max(axis=1)
        # All units of the job take part in the ring, so its steps wait for the mean of what the units have to do.
        mean_others = others.sum(axis=1) / count
        new = on_units + exchange * (1.0 + mean_others) + ring_steps * time_slice_s * mean_others
        changed = float(np.max(np.abs(new - step) / new))
        step = 0.5 * step + 0.5 * new
        present = np.where(uses, 1.0 - idle / step[:, None], 0.0)
        if changed < _TOLERANCE:
            break
    return step, present
