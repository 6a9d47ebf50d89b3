"""Measures the step time of a job that has the units for itself, from which its slow-down is computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from multi_dnn_ros.fleet.job_processes import JobProcesses
from multi_dnn_ros.fleet.messages import Report
from multi_dnn_ros.fleet.running_job import RunningJob
from multi_dnn_ros.fleet.shares import Shares

#: Steps of a measurement.
ALONE_STEPS = 4


class AloneMeasurement:
    """Measures one job at a time, while the others are paused. job: the job that is being measured, if any."""

    def __init__(self) -> None:
        self.job: RunningJob | None = None
        self._phases: list[Shares] = []

    def begin(self, job: RunningJob, phases: Sequence[Shares]) -> None:
        """Measure a job, whose processes have been started, with each of these shares; the shortest time counts."""
        assert job.processes is not None
        job.state.status = "measured"
        self.job, self._phases = job, list(dict.fromkeys(phases))
        job.processes.send(phases[0])  # the others continue while it loads its data

    def take(self, report: Report, others: Sequence[JobProcesses]) -> bool:
        """Use a report of the measured job. others: the other jobs that have shares, which are paused meanwhile.

        Returns whether the measurement has ended; the job is then running, and the others continue.
        """
        assert self.job is not None
        if report.number > 1:
            if report.count <= ALONE_STEPS:
                return False
            state = self.job.state
            state.alone_s = min(state.alone_s, report.step_s) if state.alone_s else report.step_s
            state.times.record(self.job.shares, report.step_s)
        return self._next(self.job, others)

    def abandon(self, others: Iterable[JobProcesses]) -> None:
        """End the measurement early, and let the others continue."""
        if self.job is not None and self.job.state.status != "finished":
            self.job.state.alone_s = 0.0  # from some of the phases only; all will be measured again
        self.job, self._phases = None, []
        self._resume(others)

    def _resume(self, others: Iterable[JobProcesses]) -> None:
        for other in others:
            if other.pause_requested:
                other.send(other.shares)

    def _next(self, job: RunningJob, others: Sequence[JobProcesses]) -> bool:
        """Begin the next phase once all others are paused, or end the last one.

        The others continue while one of them joins ranks or writes a checkpoint: for some minutes it cannot pause. One
        that does steps and does not pause counts as hung after a while. One that reads its data or is scored, which can
        take hours, does no steps: it pauses when it has finished, and is not waited for.
        """
        assert job.processes is not None
        awaited = [other for other in others if not other.timer.is_busy_without_limit]
        if any(other.timer.is_busy for other in awaited):
            self._resume(others)
            return False
        for other in others:
            if not other.pause_requested:
                other.send(other.shares, pause=True)
        if any(not other.is_paused for other in awaited):
            return False
        if self._phases:
            job.processes.send(self._phases.pop(0))
            return False
        self.job = None
        job.state.status = "running"
        job.save()
        for other in others:
            other.send(other.shares)
        return True
