"""Runs the training jobs of a file on units, and changes their shares every period."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.fleet.alone_measurement import ALONE_STEPS, AloneMeasurement
from multi_dnn_ros.fleet.decisions import Decisions
from multi_dnn_ros.fleet.failure_causes import find_cause
from multi_dnn_ros.fleet.folder_lock import lock_folder
from multi_dnn_ros.fleet.job_admission import admit_job
from multi_dnn_ros.fleet.job_processes import JobProcesses, stop_jobs, wait_for_messages
from multi_dnn_ros.fleet.jobs_file import FleetJob, JobsFileError
from multi_dnn_ros.fleet.launcher import Launcher, RankMain, UnitChange
from multi_dnn_ros.fleet.left_out_jobs import LeftOutJobs
from multi_dnn_ros.fleet.messages import Ended, Failed, Message, NotSaved, Paused, Report
from multi_dnn_ros.fleet.rank_process import main
from multi_dnn_ros.fleet.report_timer import SILENT_S
from multi_dnn_ros.fleet.running_job import RunningJob, unit_keys
from multi_dnn_ros.fleet.shares import TENTHS, Shares, even, whole, within
from multi_dnn_ros.fleet.unwritten_files import UnwrittenFiles
from multi_dnn_ros.fleet.usable_units import usable_limits
from multi_dnn_ros.fleet.watched_file import WatchedJobsFile

#: Failures in a row without progress after which a job is given up; seconds for a checkpoint, and for ranks to end.
_ATTEMPTS, _STOP_S, _END_S = 3, 60.0, 5.0
_TICK_S, _GRACE_S = 0.1, 0.5
#: Most seconds of one iteration that count as time in which a job could have reported. A longer one means that the
#: supervisor was stopped (Ctrl-Z), maybe together with the ranks (SIGSTOP), or was busy with other jobs.
_MAX_COUNTED_S = 1.0
#: Longest time without any usable unit.
_NO_UNIT_S = 600.0
Watch = Callable[["Supervisor", str], None]


class Supervisor:
    """jobs: by name. decisions: about their shares."""

    def __init__(
        self,
        path: Path,
        launcher: Launcher,
        folder: Path,
        *,
        watch: Watch = lambda supervisor, line: None,
        rank_main: RankMain = main,
        silent_s: float = SILENT_S,
    ) -> None:
        """watch: called about ten times per second, with a line to print or an empty one. silent_s: shortest time
        without a report after which a job counts as hung, see ReportTimer.

        The folder is locked until :meth:`run` has returned. Raises JobsFileError, and CommandError for a folder that
        another fleet uses.
        """
        self.units, self.folder = launcher.units, folder
        self.jobs: dict[str, RunningJob] = {}
        self._measurement = AloneMeasurement()
        self._watch, self._rank_main, self._launcher = watch, rank_main, launcher
        self._changes: list[UnitChange] = []
        self._left_out = LeftOutJobs()
        self._silent_s = silent_s
        self._unwritten = UnwrittenFiles()
        self._start_numbers = itertools.count(1)
        self._file = WatchedJobsFile(path)
        self._lock = lock_folder(folder)
        self.decisions = Decisions(launcher, self._file.content)
        self._begin = self._tick = self._had_units = time.monotonic()
        self._admit(self._file.content.jobs)

    @property
    def measuring(self) -> RunningJob | None:
        """The job that is measured alone while the others are paused."""
        return self._measurement.job

    @property
    def unit_names(self) -> Sequence[str]:
        """Names of the units, with their hosts in a cluster."""
        return self._launcher.names

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begin

    def run(self) -> bool:
        """Run until all jobs have ended; returns whether none has failed. Writes checkpoints on KeyboardInterrupt.

        Raises CommandError if all units were lost and none returned.
        """
        try:
            while not all(job.has_ended for job in self.jobs.values()):
                self._iterate()
                self._watch(self, "")
        finally:
            try:
                self._stop_all()
            finally:  # also if `watch` raises an error again
                self._lock.close()
        return all(job.state.status != "failed" for job in self.jobs.values())

    def show_line(self, text: str) -> None:
        """Show one line."""
        self._watch(self, text)

    def _show(self, lines: Sequence[str]) -> None:
        for line in filter(None, lines):
            self.show_line(line)

    def figures(self) -> dict[str, Any]:
        """For the JSON report: jobs and decisions."""
        return {
            "units": list(self.unit_names),
            "seconds": round(self.seconds, 3),
            "jobs_file": self._file.content.model_dump(mode="json"),
            "jobs": [job.figures() for job in self.jobs.values()],
            "decisions": self.decisions.entries,
        }

    # One iteration of the loop

    def _iterate(self) -> None:
        running = self._running()
        wait_for_messages([job.processes for job in running if job.processes is not None], _TICK_S)
        now = time.monotonic()
        passed, self._tick = now - self._tick, now
        self._read_again()
        self._changes += self._launcher.poll()
        while self._changes:
            self._change_unit(self._changes.pop(0))
        if any(self._launcher.usable):
            self._had_units = now
        elif now - self._had_units > _NO_UNIT_S:
            raise CommandError(
                f"all units were lost, and none returned within {_NO_UNIT_S:g} s; repeat the command to continue "
                "from the checkpoints"
            )
        for job in self.jobs.values():
            if self._is_due(job):
                self._spawn(job)
        for job in running:
            if job.processes is not None:
                self._handle(job, job.processes.receive())
            if job.processes is not None:
                self._check_silence(job, job.processes, passed)
            if job.processes is not None and job.state.status == "running" and not job.processes.pause_requested:
                job.state.elapsed_s += passed
                if job.wait_s is not None and not job.trains:
                    job.wait_s = max(0.0, job.wait_s - passed)
        self._show(self._unwritten.save_again(self.jobs.values(), self.seconds))
        self._leave_out()
        self._give_turns()
        if self.measuring is not None and self._measurement.takes_long:
            self._show([self._measurement.postpone()])
            self._release_measurement(self.measuring)
        if self.measuring is None and not self._changes:
            if starting := self._ready_to_start():
                self._start(min(starting, key=lambda job: job.attempts))  # those that did not fail first
            else:
                jobs = self._shared()
                self.decisions.begin_period(jobs)
                if self.decisions.is_due(jobs, self._file.content.period_s):
                    self._decide()

    def _running(self) -> list[RunningJob]:
        return [job for job in self.jobs.values() if job.processes is not None]

    def _is_due(self, job: RunningJob) -> bool:
        due = job.state.status == "waiting" and self.seconds >= job.job.start_after_s
        return due and self._has_room(job)

    # Units

    def _limits(self, job: RunningJob) -> Shares:
        """The most tenths of the job on each unit now."""
        return usable_limits(job.limits, self._launcher.usable)

    def _has_room(self, job: RunningJob) -> bool:
        """Whether the job is to be started: False while it would fit only on units that were lost."""
        return sum(self._limits(job)) >= TENTHS or sum(job.state.limits) < TENTHS

    def _change_unit(self, change: UnitChange) -> None:
        """Continue without a unit that was lost, or with one that has returned."""
        self.show_line(change.text)
        self.decisions.discard_trials(self._file.content)
        for job in self._running():
            assert job.processes is not None
            if change.usable:
                job.processes.add(change.unit)
            elif not job.processes.has_rank(change.unit):
                continue  # it was lost before; only the reason has changed
            elif (
                job.processes.needs(change.unit)
                or self._measurement.uses(job, change.unit)
                # It may do without other usable units, on which its ranks have failed; a restart tries these again.
                or job.processes.has_only(change.unit)
            ):
                self._failed(job, [(change.unit, Failed(change.text, False, False, unit_lost=True))])
            else:
                job.processes.drop(change.unit)

    # The file

    def _admit(self, jobs: Sequence[FleetJob]) -> None:
        for job in jobs:
            self.jobs[job.name], line = admit_job(job, self.folder / job.name, unit_keys(self.units))
            self._show([line])

    def _read_again(self) -> None:
        """Add and cancel jobs as the file says, if it has changed."""
        try:
            if not self._file.changed():
                return
        except JobsFileError as error:
            self.show_line(f"{error}; the fleet continues with the last valid file")
            return
        new = self._file.content
        self.decisions.change_thresholds(new)
        wanted = {job.name: job for job in new.jobs}
        self._cancel([job for name, job in self.jobs.items() if name not in wanted and not job.has_ended])
        for name, job in self.jobs.items():
            if name in wanted and not job.has_ended:
                if wanted[name].model_copy(update={"priority": job.job.priority}) != job.job:
                    self.show_line(
                        f"{name}: only its priority can change while it runs; its other new values are ignored"
                    )
                job.job = job.job.model_copy(update={"priority": wanted[name].priority})
        added = [
            job for job in new.jobs if job.name not in self.jobs or self.jobs[job.name].state.status == "cancelled"
        ]
        self._admit(added)
        for each in added:
            self.show_line(f"{each.name}: added")

    def _cancel(self, jobs: Sequence[RunningJob]) -> None:
        self._stop(jobs)
        for job in jobs:
            job.state.status = "cancelled"
            job.save()
            self.show_line(f"{job.name}: cancelled; its checkpoint is kept")

    # Start and measure alone

    def _spawn(self, job: RunningJob) -> None:
        """Start the processes, which load their libraries and the data, and then wait."""
        job.starts += 1
        # Never repeated, even if the job is removed and added again: the store still has the keys of its former ranks.
        prefix = f"{job.name}/{next(self._start_numbers)}"
        job.processes = JobProcesses(job.job, self._launcher, job.folder, prefix, self._rank_main)
        job.report, job.paused, job.step_s, job.placed, job.wait_s = None, None, 0.0, False, None
        job.state.status = "starting"

    def _start(self, job: RunningJob) -> None:
        """Measure the job alone, or place it among the others if it was measured before."""
        count = len(self.units)
        start = within(whole(0, count), self._limits(job))
        if start is None:
            self._give_up(job, f"does not fit into memory: at most {job.state.limits} tenths fit on the units")
            return
        if job.state.alone_s:
            job.state.status = "running"
            self.show_line(f"{job.name}: continues")
            self._decide()
            return
        usable = [unit for unit, can in enumerate(self._launcher.usable) if can]
        spread = within(even(usable, count), self._limits(job)) or start
        reading = job.processes.reading if job.processes is not None else []
        late = ", ".join(f"unit {unit} ({self.unit_names[unit]})" for unit in reading)
        self.show_line(f"{job.name}: started; measured alone{f'; still reading the data: {late}' if late else ''}")
        self._measurement.begin(job, (start, spread))

    def _ready_to_start(self) -> list[RunningJob]:
        """The jobs whose processes have read the data, and that are neither measured nor placed yet."""
        return [
            job
            for job in self._running()
            if job.state.status == "starting"
            and job.processes is not None
            and job.processes.can_begin
            and job.processes.timer.is_awaited
            and self._has_room(job)
        ]

    def _others(self, job: RunningJob) -> list[JobProcesses]:
        """The processes of the other jobs that have shares."""
        return [each.processes for each in self._running() if each is not job and each.processes and any(each.shares)]

    def _leave_out(self) -> None:
        """Decide without jobs that join their units for long."""
        changed, lines = self._left_out.update(self._running())
        self._show(lines)
        if changed:
            self.decisions.discard_step_times(decide_soon=True)

    # Messages

    def _handle(self, job: RunningJob, messages: Sequence[tuple[int, Message]]) -> None:
        failures = [(rank, message) for rank, message in messages if isinstance(message, Failed)]
        for rank, message in messages:
            if isinstance(message, Report) and job.processes is not None and message.number == job.processes.number:
                job.report, job.step_s = message, message.step_s
                if message.done > job.done_at_start + ALONE_STEPS:
                    job.attempts = 0
                if job is self.measuring and self._measurement.take(message, self._others(job)):
                    self.show_line(f"{job.name}: {job.state.alone_s * 1e3:.1f} ms per step alone")
                    self._decide()
            elif isinstance(message, Ended):
                self._ended(job, rank, message)
                return
            elif isinstance(message, Paused) and job.processes is not None:
                job.paused, job.processes.is_paused = message, message.number == job.processes.number
            elif isinstance(message, NotSaved):
                self._show([self._unwritten.checkpoint_warning(job, message.text)])
        if failures and job.processes is not None:
            self._handle_failures(job, failures)

    def _handle_failures(self, job: RunningJob, failures: Sequence[tuple[int, Failed]]) -> None:
        """If the job does not need the ranks that have failed, only these start again; otherwise the whole job does."""
        assert job.processes is not None
        others = [limit for unit, limit in enumerate(self._limits(job)) if unit not in dict(failures)]
        if sum(others) < TENTHS or any(self._concerns_job(job, rank, failure) for rank, failure in failures):
            self._failed(job, failures)
            return
        for rank, failure in failures:
            then = (
                "this process starts again, and the job continues without it"
                if job.processes.replace(rank)
                else "the job continues without this unit"
            )
            self.show_line(f"{job.name}: unit {rank} ({self.unit_names[rank]}) {failure.text}; {then}")

    def _concerns_job(self, job: RunningJob, rank: int, failure: Failed) -> bool:
        """Whether the job needs the rank, or the failure is one of the job: of its data, or for lack of memory."""
        assert job.processes is not None
        is_needed = job.processes.needs(rank) or self._measurement.uses(job, rank)
        return is_needed or failure.expected or failure.out_of_memory

    def _check_silence(self, job: RunningJob, processes: JobProcesses, passed_s: float) -> None:
        """A job that is silent for too long has failed."""
        processes.add_time(min(passed_s, _MAX_COUNTED_S))
        if found := processes.overdue(self._silent_s):
            self._handle_failures(job, [(found[0], Failed(found[1], False, False))])

    def _ended(self, job: RunningJob, rank: int, message: Ended) -> None:
        assert job.processes is not None
        job.processes.finish(rank, _END_S)
        job.processes = None
        job.state.status, job.losses = "finished", message.losses
        if job.report is not None:
            job.report = replace(job.report, done=message.done)
        job.state.scores = dict(message.scores)
        job.save()
        scores = ", ".join(f"{name} {value:.4f}" for name, value in message.scores)
        self.show_line(f"{job.name}: finished after {job.state.elapsed_s:.0f} s; {scores}")
        self._release_measurement(job)

    def _failed(self, job: RunningJob, failures: Sequence[tuple[int, Failed]]) -> None:
        """After running out of memory, the job loses half of its tenths on that unit. Otherwise it is tried again, or
        given up; the loss of a unit does not count as a failure of the job.
        """
        assert job.processes is not None
        rank, failure = find_cause(job.processes, failures, partial(self._lost_units, job.processes))
        shares = job.processes.shares
        job.processes.kill()
        job.processes = None
        unit = self.unit_names[rank]
        if failure.unit_lost:
            self.show_line(f"{job.name}: continues from the last checkpoint without unit {rank} ({unit})")
        elif failure.out_of_memory:
            limits = list(job.state.limits)
            limits[rank] = min(limits[rank], shares[rank] // 2)
            job.state.limits = tuple(limits)
            self.show_line(
                f"{job.name}: out of memory on unit {rank} ({unit}) with {shares[rank]} tenths: {failure.text}; at "
                f"most {limits[rank]} from now on"
            )
            if sum(limits) < TENTHS:
                self._give_up(job, f"does not fit into memory: at most {job.state.limits} tenths fit on the units")
                return
        else:
            job.attempts += 1
            if failure.expected or job.attempts >= _ATTEMPTS:
                self._give_up(job, f"unit {rank} ({unit}): {failure.text}")
                return
            self.show_line(f"{job.name}: unit {rank} ({unit}) {failure.text}; starting again from the last checkpoint")
        if job.report is not None:  # a start that ends before its first report does not make the next one a progress
            job.done_at_start = max(job.done_at_start, job.report.done)
        job.state.status = "waiting"
        self._release_measurement(job)
        job.save()

    def _lost_units(self, processes: JobProcesses) -> list[tuple[int, Failed]]:
        """The units that were lost now, and that these processes need."""
        self._changes += self._launcher.poll()
        return [
            (change.unit, Failed(change.text, False, False, unit_lost=True))
            for change in self._changes
            if not change.usable and processes.needs(change.unit)
        ]

    def _give_up(self, job: RunningJob, text: str) -> None:
        if job.processes is not None:
            job.processes.kill()
            job.processes = None
        job.state.status, job.state.text = "failed", text
        self._release_measurement(job)
        job.save()
        self.show_line(f"{job.name}: failed: {text}; see {job.folder}/rank*.log")

    def _release_measurement(self, job: RunningJob) -> None:
        """Let the others continue if this job was being measured. The next decision, about those that are left, follows
        soon.
        """
        if self.measuring is job:
            self._measurement.abandon(each.processes for each in self._running() if each.processes is not None)
        self.decisions.discard_step_times(decide_soon=True)

    # Shares

    def _decide(self) -> None:
        if self._changes:  # the next iteration first applies these changes of units to the jobs, and then decides
            return
        if text := self.decisions.decide(self._shared(), self.seconds):
            self.show_line(text)

    def _give_turns(self) -> None:
        """Plan turns again if a job has ended, been placed or become ready; not while a job is measured alone."""
        is_measuring = any(job.processes is not None and job.processes.pause_requested for job in self.jobs.values())
        if not self._changes and not is_measuring and (text := self.decisions.give_turns(self._shared(), self.seconds)):
            self.show_line(text)

    def _shared(self) -> dict[str, RunningJob]:
        """The jobs that share the units, or are to be placed on them. One that is being scored is not one of them, nor
        one that is left out.
        """
        return {
            job.name: job
            for job in self._running()
            if job.state.status == "running"
            and not job.is_trained
            and job.name not in self._left_out.names
            and (job.placed or sum(self._limits(job)) >= TENTHS)
        }

    # The end

    def _stop(self, jobs: Sequence[RunningJob]) -> None:
        """Stop jobs with a checkpoint, all at the same time; kill those that do not answer."""
        running = [(job, job.processes) for job in jobs if job.processes is not None]
        unsaved = stop_jobs([processes for _, processes in running], _STOP_S, _GRACE_S)
        for job, processes in running:
            job.processes = None
            if processes in unsaved:
                self.show_line(
                    f"{job.name}: stopped without a checkpoint; it will continue from the last one "
                    f"({unsaved[processes]})"
                )
        for job, _ in running:
            self._release_measurement(job)

    def _stop_all(self) -> None:
        running = self._running()
        try:
            self._stop(running)
        finally:
            for job in running:
                job.state.status = "waiting"
            changed = [job for job in self.jobs.values() if job in running or job.unsaved]
            for job in changed:
                job.save()
        for job in changed:
            if job.unsaved:
                self.show_line(f"{job.name}: {job.unsaved}; the same command uses the state that was written before")
