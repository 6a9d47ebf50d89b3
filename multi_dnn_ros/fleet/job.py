"""The life of a job: processes start on its units, train when it has its turn, and start again if one is lost."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from multi_dnn_ros.common.errors import summarize_error
from multi_dnn_ros.common.extras import optional
from multi_dnn_ros.common.reporting import write_text
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.policy import JobView, Units
from multi_dnn_ros.fleet.units import UnitPool
from multi_dnn_ros.fleet.worker import JobWorker, Progress

with optional("fleet"):
    from ray.exceptions import RayError, RayTaskError

#: The first steps of a turn take longer; on new units some more are then measured, before anything is decided by them.
_WARM_UP_STEPS, _MEASURED_STEPS = 2, 4
#: Processes are told to train for about this long at a time.
_SLICE_S = 1.0
#: Losses of processes, without progress in between, at which a job fails.
_MAX_FAILURES = 3
#: Time between attempts to start.
_RETRY_S = 3.0


class JobState(BaseModel):
    """Kept in state.json in the folder of the job. done, total: steps. elapsed_s: running time, from the moment at
    which it could train. slow_down: as predicted by the last decision, and at the end the real one; None: not known.
    step_s: measured seconds of a step by number of units, while no other job used them. losses: one per step. settings:
    those of the job, and the kind of unit.
    """

    status: Literal["waiting", "preparing", "running", "finished", "failed"] = "waiting"
    text: str = ""
    done: int = 0
    total: int = 0
    elapsed_s: float = 0.0
    slow_down: float | None = None
    step_s: dict[int, float] = {}
    scores: dict[str, float] = {}
    losses: list[float] = []
    settings: dict[str, Any] = {}


class Turns:
    """Who may train: the decision in force, and the jobs that are training at this moment.

    is_outdated: set by jobs when what the decision was made from has changed. stopping: all jobs are to end.
    """

    def __init__(self) -> None:
        self.is_outdated = self.stopping = False
        self._training: Mapping[str, Units] = {}
        self._taken: dict[str, Units] = {}
        self._change = asyncio.Event()

    def give(self, training: Mapping[str, Units]) -> None:
        """Let these jobs train from now on, and no others."""
        self._training, self.is_outdated = dict(training), False
        self.announce()

    def announce(self) -> None:
        """Wake the jobs that wait in :meth:`changed`."""
        self._change.set()
        self._change = asyncio.Event()

    async def changed(self) -> None:
        """Wait for other turns, other units, or the end of the fleet."""
        await self._change.wait()

    def has_turn(self, name: str) -> bool:
        """Whether the last decision lets the job train."""
        return name in self._training

    def may_train(self, name: str) -> bool:
        """Whether the job has its turn, and every job that has lost its turn on these units has paused."""
        others = self._overlapping(name, self._taken)
        return name in self._training and others <= self._overlapping(name, self._training)

    def is_alone(self, name: str) -> bool:
        """Whether no other job has its turn on the same units."""
        return not self._overlapping(name, self._training)

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """The job trains in the block."""
        self._taken[name] = self._training[name]
        try:
            yield
        finally:
            del self._taken[name]
            self.announce()

    def _overlapping(self, name: str, held: Mapping[str, Units]) -> set[str]:
        """The other jobs that hold units on which the job has its turn."""
        units = set(self._training.get(name, ()))
        return {other for other, taken in held.items() if other != name and units.intersection(taken)}


class Job:
    """units: where its processes are, or are to be; the controller sets them. is_ready: whether they can train now."""

    def __init__(self, job: FleetJob, folder: Path, pool: UnitPool, turns: Turns, say: Callable[[str], None]) -> None:
        """folder: the job's. say: called with a line for each event. Raises ValueError for an invalid state.json."""
        self.job, self.folder, self.checkpoint = job, folder, folder / "checkpoint.pt"
        self.state = _read_state(folder, {**job.settings, "unit": pool.kind})
        self.units: Units = ()
        self.is_ready = False
        self._pool, self._turns, self._say = pool, turns, say
        self._workers: list[Any] = []
        self._since: float | None = None
        self._recent: deque[float] = deque(maxlen=9)  # seconds of a step, of the last slices with these units
        self._started_at = self._saved_at = time.monotonic()
        self._change_s = 0.0

    @property
    def has_ended(self) -> bool:
        return self.state.status in ("finished", "failed")

    @property
    def elapsed_s(self) -> float:
        return self.state.elapsed_s + (time.monotonic() - self._since if self._since is not None else 0.0)

    @property
    def step_s(self) -> float | None:
        """Present seconds of a step; None: not measured."""
        return statistics.median(self._recent) if self._recent else None

    def view(self) -> JobView:
        """What a decision knows of the job."""
        state, starts_s, trains = self.state, time.monotonic() - self._started_at, self._turns.has_turn(self.job.name)
        return JobView(
            state.total, state.total - state.done, self.elapsed_s, state.step_s, self.job.priority, self.units,
            0.0 if self.is_ready else max(1.0, self._change_s - starts_s), self._change_s, trains,
        )  # fmt: skip

    def predict(self, end_s: float | None) -> None:
        """Set the slow-down for an end in `end_s` seconds; None: after the steps that are left, at the present pace."""
        if end_s is None and self.step_s is not None:
            end_s = (self.state.total - self.state.done) * self.step_s
        if end_s is not None and 1 in self.state.step_s:
            self.state.slow_down = (self.elapsed_s + end_s) / (self.state.total * self.state.step_s[1])

    def save_state(self) -> None:
        """Write state.json."""
        state = self.state.model_copy(update={"elapsed_s": self.elapsed_s})
        write_text(self.folder / "state.json", state.model_dump_json(indent=1) + "\n")

    async def run(self) -> None:
        """Train the job to its end, unless the fleet stops."""
        reached, failures = -1, 0
        self.state.status = "preparing"
        while not (self.has_ended or self._turns.stopping):
            self._turns.is_outdated = True
            try:
                await self._train()
            except RayError as error:
                failures = failures + 1 if self.state.done <= reached else 1
                reached = max(reached, self.state.done)
                write_text(self.folder / "error.log", f"{error}\n")
                if failures < _MAX_FAILURES and _is_lost(error, len(self._workers)):
                    self._say(f"{self.job.name}: {_reason(error)}; it continues from its last checkpoint")
                    await asyncio.sleep(_RETRY_S * (failures - 1))  # Ray may still be noticing the loss of a host
                else:
                    self.state.status, self.state.text = "failed", _reason(error)
            finally:
                self.is_ready = False
                for worker in self._workers:
                    self._pool.ray.kill(worker)
                self._workers = []
        self.state.elapsed_s, self._since = self.elapsed_s, None
        self.save_state()
        self._turns.is_outdated = True

    async def _train(self) -> None:
        """Train with new processes on the present units until the end, or until they change; leaves a checkpoint."""
        while not self.units:
            await self._turns.changed()
        units, name = self.units, self.job.name
        await self._start(units)
        is_warm = False
        while units == self.units and not self._turns.stopping:
            if self._turns.may_train(name):
                with self._turns.taken(name):
                    if self.state.done < self.state.total:
                        await self._steps(is_warm)
                        is_warm = True
                    if self.state.done >= self.state.total:
                        await self._save()
                        self.state.scores = await self._workers[0].finish.remote()
                        self.state.status = "finished"
                        self.predict(0.0)
                        return
            elif is_warm:  # its turn is over
                is_warm = False
                await asyncio.gather(*(worker.rest.remote() for worker in self._workers))
            else:
                await self._turns.changed()
        await self._save()

    async def _start(self, units: Units) -> None:
        self._started_at = time.monotonic()
        arguments = (JobWorker, self.job, self._pool.threads, self.folder)
        self._workers = [self._pool.start(unit, *arguments) for unit in units]
        prepared: list[Progress] = await asyncio.gather(
            *(each.prepare.remote(self.checkpoint) for each in self._workers)
        )
        address = await self._workers[0].address.remote()
        await asyncio.gather(*(worker.join.remote(k, len(units), address) for k, worker in enumerate(self._workers)))
        self.state.done, self.state.total = prepared[0].done, prepared[0].total
        self.state.losses = list(prepared[0].losses)
        self.state.status, self.is_ready = "running", True
        self._recent.clear()
        self._saved_at = time.monotonic()
        self._change_s = self._saved_at - self._started_at
        if self._since is None:
            self._since = self._saved_at
        self._turns.is_outdated = True

    async def _steps(self, is_warm: bool) -> None:
        """Do some steps, and measure them unless they are the first ones of a turn."""
        state, count = self.state, len(self._workers)
        if self.step_s is not None:
            wanted = max(1, round(_SLICE_S / self.step_s))
        else:
            wanted = _MEASURED_STEPS if is_warm else _WARM_UP_STEPS
        steps = min(wanted, state.total - state.done)
        done: list[Progress] = await asyncio.gather(*(worker.train.remote(steps) for worker in self._workers))
        state.done = done[0].done
        self.state.losses += done[0].losses
        if is_warm or (state.done == state.total and count not in state.step_s):
            self._recent.append(max(1e-6, done[0].seconds / steps))
            if self._turns.is_alone(self.job.name):
                if count not in state.step_s:
                    self._turns.is_outdated = True
                state.step_s[count] = statistics.median(self._recent)
        if time.monotonic() - self._saved_at >= self.job.checkpoint_every_s:
            await self._save()

    async def _save(self) -> None:
        """Write a checkpoint."""
        self._saved_at = time.monotonic()
        await self._workers[0].save.remote(self.checkpoint)


def _read_state(folder: Path, settings: Mapping[str, Any]) -> JobState:
    """The state that an earlier run has left; a new one if there is none, or for other settings."""
    path = folder / "state.json"
    try:
        state = JobState.model_validate_json(path.read_text(encoding="utf-8")) if path.exists() else JobState()
    except ValueError as error:
        raise ValueError(f"{path}: not the state of a job ({summarize_error(error)}); remove it") from None
    if state.settings != settings:
        return JobState(settings=dict(settings))
    return state if state.status == "finished" else state.model_copy(update={"status": "waiting", "text": ""})


def _is_lost(error: BaseException, processes: int) -> bool:
    """Whether a process of a job has ended, or, of several processes, could not reach another one."""
    if isinstance(error, RayTaskError):
        return processes > 1 and isinstance(error.cause, RuntimeError)
    return isinstance(error, RayError)


def _reason(error: RayError) -> str:
    """The error in one line."""
    if not isinstance(error, RayTaskError):
        return "a process has ended unexpectedly"
    text = summarize_error(error.cause)
    return text if isinstance(error.cause, ValueError | OSError) else f"{type(error.cause).__name__}: {text}"
