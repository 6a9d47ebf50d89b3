"""Measures the step time of a job that has the units for itself, from which its slow-down is computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from multi_dnn_ros.fleet.job_processes import JobProcesses
from multi_dnn_ros.fleet.messages import Report
from multi_dnn_ros.fleet.report_timer import AWAITED_S
from multi_dnn_ros.fleet.running_job import RunningJob
from multi_dnn_ros.fleet.shares import Shares

#: Steps of a measurement.
ALONE_STEPS = 4


class AloneMeasurement:
    """Measures one job at a time, while the others are paused. job: the job that is being measured, if any."""

    def __init__(self) -> None:
        self.job: RunningJob | None = None
        self._phases: list[Shares] = []  # the present one first
        self._others_pause = False

    def begin(self, job: RunningJob, phases: Sequence[Shares]) -> None:
        """Measure a job, whose processes have been started, with each of these shares; the shortest time counts."""
        assert job.processes is not None
        job.state.status = "measured"
        self.job, self._phases = job, list(dict.fromkeys(phases))
        self._begin_phase(job.processes)

    def uses(self, job: RunningJob, unit: int) -> bool:
        """Whether this job is being measured, and the unit has or will have a share of it."""
        return job is self.job and any(shares[unit] for shares in self._phases)

    def take(self, report: Report, others: Sequence[JobProcesses]) -> bool:
        """Use a report of the measured job. others: the other jobs that have shares, which are paused meanwhile.

        Returns whether the measurement has ended; the job is then running, and the others continue.
        """
        assert self.job is not None
        assert self.job.processes is not None
        if not self._others_pause:
            if self._pause(others):
                self._others_pause = True
                self.job.processes.send(self._phases[0])  # the same shares: only the steps until now are discarded
            return False
        if report.count <= ALONE_STEPS:
            return False
        state = self.job.state
        state.alone_s = min(state.alone_s, report.step_s) if state.alone_s else report.step_s
        state.times.record(self.job.shares, report.step_s)
        del self._phases[0]
        if self._phases:
            self._resume(others)
            self._begin_phase(self.job.processes)
            return False
        self.job = None
        state.status = "running"
        self._resume(others)
        return True

    @property
    def takes_long(self) -> bool:
        """Whether the job makes no steps for long, while the others pause for it: it is being scored, or writes a
        checkpoint or joins its units, and may hang.
        """
        assert self.job is not None
        assert self.job.processes is not None
        return self.job.is_trained or not self.job.processes.timer.is_awaited

    def postpone(self) -> str:
        """Measure a job that takes long later, unless it has made its last step; :meth:`abandon` is to follow. Returns
        a line to show, or an empty one.
        """
        assert self.job is not None
        assert self.job.processes is not None
        if self.job.is_trained:
            return ""
        self.job.state.status = "starting"
        activity = self.job.processes.timer.activity
        return f"{self.job.name}: {activity} takes longer than {AWAITED_S:g} s; the job is measured later"

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

    def _begin_phase(self, processes: JobProcesses) -> None:
        """Let the job join its units. The others continue meanwhile: this takes seconds, or longer if a rank hangs."""
        self._others_pause = False
        processes.send(self._phases[0])

    def _pause(self, others: Sequence[JobProcesses]) -> bool:
        """Let the others pause. Returns whether they have paused.

        They continue while one of them joins ranks, writes a checkpoint or is scored: it cannot pause until then, and
        the others would have to wait for it. If this takes long, it is not waited for; it pauses when it has finished.
        One that does steps and does not pause counts as hung after a while.
        """
        awaited = [other for other in others if other.timer.is_awaited]
        if any(other.timer.is_busy for other in awaited):
            self._resume(others)
            return False
        for other in others:
            if not other.pause_requested:
                other.send(other.shares, pause=True)
        return all(other.is_paused for other in awaited)
