"""Simulated comparisons: the jobs of a file on several numbers of units, under every policy."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multi_dnn_ros.fleet.contention import JobLoad, alone_s
from multi_dnn_ros.fleet.jobs_file import FleetJob, JobsFile
from multi_dnn_ros.fleet.plot import Points
from multi_dnn_ros.fleet.policy_result import columns, compare
from multi_dnn_ros.fleet.sharing import POLICIES
from multi_dnn_ros.fleet.simulator import Fleet, Simulated, SimulatedJob, simulate
from multi_dnn_ros.fleet.step_times import StepTimes

#: Range of job lengths, relative to those in the file; work that arrives per second, relative to what all units finish.
_LENGTHS, _DEMAND = (0.5, 2.0), 0.8


@dataclass(frozen=True)
class Scenario:
    """units: number of equal units. copies: number of jobs, made from those of the file in turn; 0: those of the file,
    at their start times. Copies have random lengths and arrive at random times (Poisson), so that the work that arrives
    is 80 % of what the units could do.
    """

    units: int
    copies: int = 0
    seed: int = 0


def simulated_jobs(file: JobsFile, times: StepTimes, scenario: Scenario) -> list[SimulatedJob]:
    """The jobs of a scenario. Raises ValueError for a job without `steps`, or a model without step times."""
    loads = {job.name: JobLoad(times.of(job.model), job.global_batch) for job in file.jobs}
    if not scenario.copies:
        return [
            SimulatedJob(
                job.name, loads[job.name], _steps(job), job.start_after_s, job.priority, times.of(job.model).start_s
            )
            for job in file.jobs
        ]  # fmt: skip
    rng = random.Random(scenario.seed)
    jobs, now = [], 0.0
    work = [_steps(job) * alone_s(loads[job.name], 1, times.interconnect) for job in file.jobs]
    factor = (_LENGTHS[0] + _LENGTHS[1]) / 2
    gap = factor * sum(work) / len(work) / scenario.units / _DEMAND
    for k in range(scenario.copies):
        job = file.jobs[k % len(file.jobs)]
        steps = max(1, round(_steps(job) * rng.uniform(*_LENGTHS)))
        start_s = times.of(job.model).start_s
        jobs.append(SimulatedJob(f"{job.name}-{k + 1}", loads[job.name], steps, now, job.priority, start_s))
        now += rng.expovariate(1.0 / gap)
    return jobs


def run_scenario(file: JobsFile, times: StepTimes, scenario: Scenario) -> dict[str, Simulated]:
    """The results of every policy."""
    jobs = simulated_jobs(file, times, scenario)
    fleet = Fleet(
        scenario.units, times.interconnect, times.time_slice_ms / 1e3, file.period_s, times.change_s, file.thresholds,
        file.gain, file.turns,
    )  # fmt: skip
    return {policy: simulate(jobs, fleet, policy) for policy in POLICIES}


def scenario_figures(scenario: Scenario, results: Mapping[str, Simulated]) -> dict[str, Any]:
    """For the JSON report."""
    return {
        "units": scenario.units,
        "jobs": len(results["fair"].slow_downs),
        "seed": scenario.seed,
        "policies": {policy: result.figures() for policy, result in results.items()},
        "fair_against_baselines": compare(results),
    }


def scenario_table(rows: Sequence[tuple[Scenario, Mapping[str, Simulated]]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table that the command prints."""
    header = ["units", "jobs", *columns("total h")]
    return header, [
        [str(scenario.units), str(len(result.slow_downs)), *result.cells(f"{result.total_s / 3600:.2f}")]
        for scenario, results in rows
        for result in results.values()
    ]


def slow_down_points(result: Simulated) -> dict[str, Points]:
    """(minutes, predicted slow-down) at each sample, by job."""
    points: dict[str, list[tuple[float, float]]] = {}
    for sample in result.samples:
        for job, value in sample.slow_downs.items():
            points.setdefault(job, []).append((sample.time_s / 60, value))
    return dict(points)


def _steps(job: FleetJob) -> int:
    if job.steps is None:
        raise ValueError(f"job '{job.name}' has epochs; a simulation needs steps")
    return job.steps
