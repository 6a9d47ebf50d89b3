"""Units whose processes only count steps, in the place of those of Ray: they run quickly, and fail on demand."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.exceptions import ActorDiedError, RayTaskError

from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.worker import Progress


def lost() -> Exception:
    """What Ray raises for a call of a process that has ended."""
    return ActorDiedError()


def raised(error: Exception) -> Exception:
    """What Ray raises for a call that has raised an error."""
    return RayTaskError("JobWorker.train()", f"Traceback of {error}", error).as_instanceof_cause()


class FakePool:
    """As UnitPool. step_s: of every job on one unit that it has for itself. fault: called before each call of a
    process, with the name of the job, the method and the steps done so far; may raise.

    started: the steps from which processes of each job have started. calls: all calls of `train` as (job, unit, begin,
    end) in seconds.
    """

    threads, kind = 1, "pretended CPU"

    def __init__(self, count: int, fault: Callable[[str, str, int], None] = lambda job, method, done: None) -> None:
        self.count = count
        self.fault = fault
        self.step_s = 0.02
        self.ray = SimpleNamespace(kill=lambda worker: worker.kill())
        self.started: dict[str, list[int]] = defaultdict(list)
        self.calls: list[tuple[str, int, float, float]] = []

    def start(self, unit: int, actor: type, job: FleetJob, threads: int, folder: Path) -> FakeWorker:
        return FakeWorker(self, unit, job, folder)

    def together(self) -> set[tuple[str, str]]:
        """Pairs of jobs that have trained on a unit at the same time."""
        return {
            (one[0], other[0])
            for one in self.calls for other in self.calls
            if one[0] < other[0] and one[1] == other[1] and max(one[2], other[2]) < min(one[3], other[3]) - 1e-3
        }  # fmt: skip


class FakeWorker:
    """As the handle of a JobWorker."""

    def __init__(self, pool: FakePool, unit: int, job: FleetJob, folder: Path) -> None:
        self._pool, self._unit, self._job, self._folder = pool, unit, job, folder
        self._done, self._world = 0, 1
        self._running: set[asyncio.Task[Any]] = set()

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._begin(method, *arguments))

    def kill(self) -> None:
        for task in self._running:
            task.cancel()

    def _begin(self, method: str, *arguments: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(self._call(method, *arguments))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _call(self, method: str, *arguments: Any) -> Any:
        await asyncio.sleep(0.001)
        self._pool.fault(self._job.name, method, self._done)
        if method == "prepare":
            (checkpoint,) = arguments
            self._done = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
            self._pool.started[self._job.name].append(self._done)
            return self._progress(self._done)
        if method == "join":
            _, self._world, _ = arguments
        if method == "train":
            (steps,) = arguments
            begin, seconds = time.monotonic(), steps * self._pool.step_s / self._world
            await asyncio.sleep(seconds)
            self._done += steps
            self._pool.calls.append((self._job.name, self._unit, begin, time.monotonic()))
            return self._progress(steps, seconds)
        if method == "save":
            arguments[0].parent.mkdir(parents=True, exist_ok=True)
            arguments[0].write_text(str(self._done))
        return {"top1": 1.0}

    def _progress(self, steps: int, seconds: float = 0.0) -> Progress:
        return Progress(self._done, int(self._job.steps or 0), [0.5] * steps, seconds)
