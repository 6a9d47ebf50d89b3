"""Runs the jobs of a file: decides again and again which of them train on which units."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.reporting import write_json
from multi_dnn_ros.fleet.job import Job, Turns
from multi_dnn_ros.fleet.jobs_file import JobsFile
from multi_dnn_ros.fleet.policy import POLICIES, Policy, decide
from multi_dnn_ros.fleet.units import UnitPool

#: Time between two looks at the jobs; longest time for the checkpoints of all of them when the command is interrupted.
_TICK_S, _STOP_S = 0.2, 60.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

#: Called with the fleet and a line about an event, or without a line once per _TICK_S.
Watch = Callable[["Fleet", str], None]


class Fleet:
    """jobs: by name, in the order of the file. decisions: each one, for the report. seconds: since the start, over all
    runs of the command with this folder.
    """

    def __init__(self, file: JobsFile, policy: Policy, pool: UnitPool, folder: Path, watch: Watch) -> None:
        """folder: gets a folder for each job. Raises CommandError if another fleet uses it, OSError if it cannot be
        written, ValueError for files of something else in it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise CommandError(f"{folder} is used by another fleet; end it, or give another --folder") from None
        self.policy, self.pool = policy, pool
        self._period_s, self._kept, self._watch = file.period_s, folder / "fleet.json", watch
        try:
            kept = json.loads(self._kept.read_text(encoding="utf-8")) if self._kept.exists() else {}
            self.decisions: list[dict[str, Any]] = kept.get("decisions", [])
            self.seconds: float = kept.get("seconds", 0.0)
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{self._kept}: not of a fleet ({error}); remove it, or give another --folder") from None
        self._turns = Turns()
        self.jobs = {
            job.name: Job(job, folder / job.name, pool, self._turns, lambda line: watch(self, line))
            for job in file.jobs
        }

    async def run(self) -> bool:
        """Train all jobs to their ends. Returns whether all have finished.

        After SIGINT or SIGTERM it lets the jobs write checkpoints, and raises KeyboardInterrupt.
        """
        loop, before_s, begin = asyncio.get_running_loop(), self.seconds, time.monotonic()
        for each in _SIGNALS:
            loop.add_signal_handler(each, self._stop)
        left = {asyncio.create_task(self._run(job), name=name) for name, job in self.jobs.items() if not job.has_ended}
        decided_at = begin
        try:
            while left and not self._turns.stopping:
                done, left = await asyncio.wait(left, timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # raises what is no failure of a job
                self.seconds = before_s + time.monotonic() - begin
                if self._turns.is_outdated or time.monotonic() - decided_at >= self._period_s:
                    decided_at = time.monotonic()
                    self._decide()
                self._watch(self, "")
            if left:
                self._watch(self, "interrupted; the jobs write checkpoints")
                for task in left:
                    if not self.jobs[task.get_name()].is_ready:  # nothing is lost
                        task.cancel()
                await asyncio.wait(left, timeout=_STOP_S)
        finally:
            for each in _SIGNALS:
                loop.remove_signal_handler(each)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            write_json(self._kept, {"seconds": self.seconds, "decisions": self.decisions})
            self._lock.release()
        if self._turns.stopping:
            raise KeyboardInterrupt
        return all(job.state.status == "finished" for job in self.jobs.values())

    def _stop(self) -> None:
        """A second signal ends the command at once."""
        self._turns.stopping = True
        self._turns.announce()
        for each in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(each)

    async def _run(self, job: Job) -> None:
        await job.run()
        self._watch(self, f"{job.job.name}: {job.state.status} {job.state.text}".rstrip())

    def _decide(self) -> None:
        jobs = {name: job for name, job in self.jobs.items() if job.state.status in ("preparing", "running")}
        decision = decide(self.policy, {name: job.view() for name, job in jobs.items()}, self.pool.count)
        for name, job in jobs.items():
            job.units = decision.units[name]
            job.predict(decision.end_s.get(name))
            job.save_state()
        self._turns.give(decision.training)
        before = self.decisions[-1]["training"] if self.decisions else {}
        now = {name: list(units) for name, units in decision.training.items()}
        self.decisions.append({
            "seconds": round(self.seconds, 3),
            "training": now,
            "units": {name: job.units for name, job in self.jobs.items()},
            "slow_downs": {name: job.state.slow_down for name, job in self.jobs.items()},
        })  # fmt: skip
        if now and now != before:
            self._watch(self, f"training: {', '.join(f'{name} on {units}' for name, units in now.items())}")


async def train_under_each(
    file: JobsFile, pool: UnitPool, folder: Path, watch: Watch, fleets: dict[Policy, Fleet]
) -> None:
    """Train the jobs under each policy, and add the fleets to `fleets`. Each has a folder with the name of its policy;
    complete ones are not trained again. All slow-downs are relative to the step times under the first policy.

    Raises CommandError if a job fails, and like :class:`Fleet`.
    """
    # The trained networks stay in the folders.
    file = file.model_copy(update={"jobs": tuple(job.model_copy(update={"output": None}) for job in file.jobs)})
    for policy in POLICIES:
        fleet = fleets[policy] = Fleet(file, policy, pool, folder / policy, watch)
        for name, job in fleet.jobs.items():
            job.state.step_s = dict(job.state.step_s or fleets[POLICIES[0]].jobs[name].state.step_s)
        if not await fleet.run():
            failed = [f"{name}: {job.state.text}" for name, job in fleet.jobs.items() if job.state.status == "failed"]
            raise CommandError(f"policy {policy}: a comparison needs all jobs, but {'; '.join(failed)}")
        for name, job in fleet.jobs.items():
            alone = fleets[POLICIES[0]].jobs[name].state
            job.state.slow_down = job.state.elapsed_s / (alone.total * alone.step_s[1])
