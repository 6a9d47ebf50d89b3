"""Runs the trainings of a file on the units of this machine, and changes their shares every period."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from multi_dnn_ros.fleet.job_processes import JobProcesses, RankMain, wait_for_messages
from multi_dnn_ros.fleet.jobs_file import FleetJob, JobsFileError, read_jobs_file
from multi_dnn_ros.fleet.messages import Ended, Failed, Held, Message, Report
from multi_dnn_ros.fleet.rank_process import main
from multi_dnn_ros.fleet.running_job import RunningJob
from multi_dnn_ros.fleet.shares import TENTHS, Shares, even, used, whole, within
from multi_dnn_ros.fleet.sharing import TRIAL_PART, Sharing
from multi_dnn_ros.fleet.unit_use import UnitUse
from multi_dnn_ros.planning.batch_units import Unit

#: Steps of a measurement; failures in a row without progress after which a job is given up; seconds for a checkpoint,
#: and for ranks to end.
_ALONE_STEPS, _ATTEMPTS, _STOP_S, _END_S = 4, 3, 60.0, 5.0
_TICK_S, _GRACE_S = 0.1, 0.5
Watch = Callable[["Supervisor", str], None]


class Supervisor:
    """jobs: by name. decisions: every change of shares, for the report. use: 0..1 of each unit in the last period.
    measuring: the job that is measured alone while the others hold.
    """

    def __init__(
        self,
        path: Path,
        units: Sequence[Unit],
        folder: Path,
        *,
        watch: Watch = lambda supervisor, line: None,
        rank_main: RankMain = main,
    ) -> None:
        """watch: called about ten times per second, with a line to print or an empty one. Raises JobsFileError."""
        self.path, self.units, self.folder = path, tuple(units), folder
        self.jobs: dict[str, RunningJob] = {}
        self.decisions: list[dict[str, Any]] = []
        self.use = [0.0] * len(units)
        self.measuring: RunningJob | None = None
        self._watch, self._rank_main = watch, rank_main
        self._file = read_jobs_file(path)
        self._stamp = path.stat().st_mtime_ns
        self._sharing = Sharing(self._file.thresholds, self._file.gain)
        self._unit_use = UnitUse(self.units)
        self._begin = self._tick = time.monotonic()
        self._decided = self._begin
        self._phases: list[Shares] = []
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._admit(self._file.jobs)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._begin

    def run(self) -> bool:
        """Until all jobs have ended. Returns whether none has failed. KeyboardInterrupt writes checkpoints first."""
        try:
            while not all(job.done for job in self.jobs.values()):
                self._turn()
                self._watch(self, "")
        finally:
            self._stop_all()
        return all(job.memory.status != "failed" for job in self.jobs.values())

    def say(self, text: str) -> None:
        """Show one line."""
        self._watch(self, text)

    def figures(self) -> dict[str, Any]:
        """For the JSON report: jobs and decisions."""
        return {
            "units": [unit.name for unit in self.units],
            "seconds": round(self.seconds, 3),
            "jobs_file": self._file.model_dump(mode="json"),
            "jobs": [job.figures() for job in self.jobs.values()],
            "decisions": self.decisions,
        }

    def slow_down_points(self) -> dict[str, list[tuple[float, float]]]:
        """(minutes, slow-down times priority) of each job at each decision."""
        points: dict[str, list[tuple[float, float]]] = {}
        for decision in self.decisions:
            for name, value in decision["slow_downs"].items():
                points.setdefault(name, []).append((decision["seconds"] / 60, value))
        return points

    # One turn

    def _turn(self) -> None:
        running = self._running()
        wait_for_messages([job.processes for job in running if job.processes is not None], _TICK_S)
        now = time.monotonic()
        passed, self._tick = now - self._tick, now
        self._read_again()
        for job in self.jobs.values():
            if self._is_due(job):
                self._spawn(job)
        for job in running:
            if job.processes is not None:
                self._handle(job, job.processes.receive())
            if job.processes is not None and job.memory.status == "running" and not job.processes.held:
                job.memory.elapsed_s += passed
        pids: list[list[int]] = [[] for _ in self.units]
        for job in self._running():
            if job.processes is not None:
                for unit, pid in enumerate(job.processes.pids):
                    pids[unit].append(pid)
        self._unit_use.sample(pids)
        if self.measuring is None:
            starting = [job for job in self._running() if job.memory.status == "starting"]
            if starting:
                self._start(starting[0])
            elif now - self._decided >= self._file.period_s * (TRIAL_PART if self._sharing.on_trial else 1.0):
                self._decide()

    def _running(self) -> list[RunningJob]:
        return [job for job in self.jobs.values() if job.processes is not None]

    def _is_due(self, job: RunningJob) -> bool:
        return job.memory.status == "waiting" and self.seconds >= job.job.start_after_s

    # The file

    def _admit(self, jobs: Sequence[FleetJob]) -> None:
        names = tuple(f"{k}:{unit.name}" for k, unit in enumerate(self.units))
        for job in jobs:
            folder = self.folder / job.name
            folder.mkdir(parents=True, exist_ok=True)
            found = RunningJob(job, folder, names)
            if found.memory.status not in ("finished", "failed"):
                found.memory.status = "waiting"
            elif found.memory.status == "failed":
                found.memory.status, found.memory.text = "waiting", ""  # the command was given again
            else:
                self.say(f"{job.name}: finished before, see {folder}")
            self.jobs[job.name] = found

    def _read_again(self) -> None:
        """Add and cancel jobs as the file says, if it has changed."""
        try:
            stamp = self.path.stat().st_mtime_ns
        except OSError:
            return  # an editor is replacing it
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            new = read_jobs_file(self.path)
        except JobsFileError as error:
            self.say(f"{error}; the fleet continues with the last valid file")
            return
        self._file = new
        self._sharing.thresholds, self._sharing.gain = new.thresholds, new.gain
        wanted = {job.name: job for job in new.jobs}
        for name, job in self.jobs.items():
            if name not in wanted and not job.done:
                self._cancel(job)
            elif name in wanted and not job.done:
                if wanted[name].model_copy(update={"priority": job.job.priority}) != job.job:
                    self.say(f"{name}: only its priority can change while it runs; its other new values are ignored")
                job.job = job.job.model_copy(update={"priority": wanted[name].priority})
        added = [
            job for job in new.jobs if job.name not in self.jobs or self.jobs[job.name].memory.status == "cancelled"
        ]
        self._admit(added)
        for each in added:
            self.say(f"{each.name}: added")

    def _cancel(self, job: RunningJob) -> None:
        self._stop(job)
        job.memory.status = "cancelled"
        job.save()
        self.say(f"{job.name}: cancelled; its checkpoint is kept")

    # Start and measure alone

    def _spawn(self, job: RunningJob) -> None:
        """Start the processes, which then load their libraries and wait for a command."""
        job.starts += 1
        prefix = f"{job.name}/{job.starts}"
        job.processes = JobProcesses(job.job, self.units, job.folder, self._store.port, prefix, self._rank_main)
        job.report, job.step_s, job.placed = None, 0.0, False
        job.memory.status = "starting"

    def _start(self, job: RunningJob) -> None:
        """Measure the job alone, or place it among the others if it was measured before."""
        count = len(self.units)
        start = within(whole(0, count), job.memory.limits)
        if start is None:
            self._give_up(job, f"does not fit into memory: at most {job.memory.limits} tenths fit the units")
            return
        if job.memory.alone_s:
            job.memory.status = "running"
            self.say(f"{job.name}: continues")
            self._decide()
            return
        assert job.processes is not None
        job.memory.status = "measured"
        self.measuring = job
        spread = within(even(range(count), count), job.memory.limits) or start
        self._phases = list(dict.fromkeys((start, spread)))
        self.say(f"{job.name}: started; measured alone")
        job.processes.send(start)  # the others continue while it loads its data

    def _others(self, job: RunningJob) -> list[JobProcesses]:
        """The processes of the other jobs that have shares."""
        return [each.processes for each in self._running() if each is not job and each.processes and any(each.shares)]

    def _measure_next(self) -> None:
        """Begin the next measurement once all others hold, or end the last one."""
        job = self.measuring
        assert job is not None
        assert job.processes is not None
        others = self._others(job)
        for other in others:
            if not other.held:
                other.send(other.shares, hold=True)
        if any(not other.holds for other in others):
            return
        if self._phases:
            job.processes.send(self._phases.pop(0))
            return
        self.measuring = None
        job.memory.status = "running"
        job.save()
        self.say(f"{job.name}: {job.memory.alone_s * 1e3:.1f} ms per step alone")
        for other in others:
            other.send(other.shares)
        self._decide()

    # Messages

    def _handle(self, job: RunningJob, messages: Sequence[tuple[int, Message]]) -> None:
        failures = [(rank, message) for rank, message in messages if isinstance(message, Failed)]
        for _, message in messages:
            if isinstance(message, Report) and job.processes is not None and message.number == job.processes.number:
                job.report, job.step_s = message, message.step_s
                if message.done > job.done_at_start + _ALONE_STEPS:
                    job.attempts = 0
                if job is self.measuring and message.number == 1:
                    self._measure_next()
                elif job is self.measuring and message.count > _ALONE_STEPS:
                    alone = job.memory.alone_s
                    job.memory.alone_s = min(alone, message.step_s) if alone else message.step_s
                    self._measure_next()
            elif isinstance(message, Ended):
                self._ended(job, message)
                return
            elif isinstance(message, Held) and job.processes is not None:
                job.processes.holds = message.number == job.processes.number
        if failures and job.processes is not None:
            self._failed(job, failures)

    def _ended(self, job: RunningJob, message: Ended) -> None:
        assert job.processes is not None
        # A rank that was to join waits for the others, which have ended.
        job.processes.join(_END_S)
        job.processes = None
        job.memory.status, job.losses = "finished", message.losses
        if job.report is not None:
            job.report = replace(job.report, done=message.done)
        job.memory.scores = dict(message.scores)
        job.save()
        scores = ", ".join(f"{name} {value:.4f}" for name, value in message.scores)
        self.say(f"{job.name}: finished after {job.memory.elapsed_s:.0f} s; {scores}")
        self._release_measurement(job)

    def _failed(self, job: RunningJob, failures: Sequence[tuple[int, Failed]]) -> None:
        """Out of memory: the job loses half of its tenths there. Otherwise it is tried again, or given up."""
        assert job.processes is not None
        deadline = time.monotonic() + _GRACE_S  # the first message may be of a rank whose peer has the cause
        found = list(failures)
        while time.monotonic() < deadline:
            wait_for_messages([job.processes], _TICK_S)
            found += [(rank, text) for rank, text in job.processes.receive() if isinstance(text, Failed)]
        rank, failure = max(found, key=lambda each: (each[1].out_of_memory, "killed" in each[1].text, each[1].expected))
        shares = job.processes.shares
        job.processes.kill()
        job.processes = None
        unit = self.units[rank].name
        if failure.out_of_memory:
            limits = list(job.memory.limits)
            limits[rank] = min(limits[rank], shares[rank] // 2)
            job.memory.limits = tuple(limits)
            self.say(f"{job.name}: out of memory on unit {rank} ({unit}) with {shares[rank]} tenths: {failure.text}; "
                     f"at most {limits[rank]} from now on")  # fmt: skip
            if sum(limits) < TENTHS:
                self._give_up(job, f"does not fit into memory: at most {job.memory.limits} tenths fit the units")
                return
        else:
            job.attempts += 1
            if failure.expected or job.attempts >= _ATTEMPTS:
                self._give_up(job, f"unit {rank} ({unit}): {failure.text}")
                return
            self.say(f"{job.name}: unit {rank} ({unit}) {failure.text}; starting again from the last checkpoint")
        job.done_at_start = job.report.done if job.report is not None else -1
        job.memory.status = "waiting"
        job.save()
        self._release_measurement(job)

    def _give_up(self, job: RunningJob, text: str) -> None:
        if job.processes is not None:
            job.processes.kill()
            job.processes = None
        job.memory.status, job.memory.text = "failed", text
        job.save()
        self.say(f"{job.name}: failed: {text}; see {job.folder}/rank*.log")
        self._release_measurement(job)

    def _release_measurement(self, job: RunningJob) -> None:
        """Let the others continue if this job was being measured; share the units among those that are left."""
        if self.measuring is job:
            self.measuring, self._phases = None, []
            for other in self._running():
                if other.processes is not None and other.processes.held:
                    other.processes.send(other.shares)
        if self.measuring is None:
            self._decided = -1e9  # decide in the next turn

    # Shares

    def _decide(self) -> None:
        jobs = {job.name: job for job in self._running() if job.memory.status == "running"}
        if not jobs:
            return
        # Jobs that have not made two steps under their shares yet are waited for, unless a job is to be placed.
        if all(job.placed for job in jobs.values()) and not all(job.is_current for job in jobs.values()):
            return
        self._decided = time.monotonic()
        self.use = self._unit_use.take()
        slow_downs = {
            name: progress.slow_down * job.job.priority
            for name, job in jobs.items()
            if job.placed and (progress := job.progress) is not None
        }
        nothing = (0,) * len(self.units)
        allocation = {name: job.shares if job.placed else nothing for name, job in jobs.items()}
        limits = {name: job.memory.limits for name, job in jobs.items() if min(job.memory.limits) < TENTHS}
        decision = self._sharing.decide(allocation, slow_downs, self.use, limits)
        for name in decision.jobs:
            job = jobs[name]
            assert job.processes is not None
            job.processes.send(decision.allocation[name])
            job.placed = True
        self.decisions.append({
            "seconds": round(self.seconds, 3),
            "reason": decision.reason,
            "jobs": list(decision.jobs),
            "slow_downs": slow_downs,
            "use": self.use,
            "shares": {name: list(shares) for name, shares in decision.allocation.items()},
            "images_per_s": {name: job.job.global_batch / job.step_s for name, job in jobs.items() if job.step_s},
        })  # fmt: skip
        for job in jobs.values():
            job.save()
        if decision.jobs:
            changes = ", ".join(f"{name} {decision.allocation[name]}" for name in decision.jobs)
            self.say(f"shares ({decision.reason}): {changes}")

    # The end

    def _stop(self, job: RunningJob) -> None:
        """Stop with a checkpoint; kill what does not answer."""
        processes = job.processes
        if processes is None:
            return
        if used(processes.shares):
            processes.send(processes.shares, stop=True)
            deadline = time.monotonic() + _STOP_S
            while time.monotonic() < deadline:
                wait_for_messages([processes], _TICK_S)
                if any(isinstance(message, Ended | Failed) for _, message in processes.receive()):
                    break
        processes.join(_GRACE_S)
        job.processes = None
        self._release_measurement(job)

    def _stop_all(self) -> None:
        for job in self._running():
            self._stop(job)
            job.memory.status = "waiting"
            job.save()
