"""Runs a fleet until a test has seen what it waits for."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multi_dnn_ros.fleet.launcher import Launcher
from multi_dnn_ros.fleet.supervisor import Supervisor


class Watch:
    """The `watch` of a supervisor. lines: what it has shown.

    act: called after each iteration with the supervisor and the lines; the fleet ends when it returns True. If it does
    not within `patience_s`, this is an AssertionError.
    """

    def __init__(self, act: Callable[[Supervisor, list[str]], bool], patience_s: float = 120.0) -> None:
        self.lines: list[str] = []
        self._act = act
        self._patience_s = patience_s

    def __call__(self, supervisor: Supervisor, line: str) -> None:
        if line:
            self.lines.append(line)
            return
        assert supervisor.seconds < self._patience_s, "\n".join(self.lines)
        if self._act(supervisor, self.lines):
            raise KeyboardInterrupt


def run_until(
    act: Callable[[Supervisor, list[str]], bool], path: Path, launcher: Launcher, **options: Any
) -> tuple[Supervisor, list[str]]:
    """Run the jobs of a file, in the folder `runs` beside it, until `act` returns True. act: see Watch. options: of the
    supervisor.

    Returns the supervisor, and the lines that it has shown.
    """
    watch = Watch(act)
    return run_watched(path, launcher, watch, **options), watch.lines


def run_watched(path: Path, launcher: Launcher, watch: Callable[[Supervisor, str], None], **options: Any) -> Supervisor:
    """Run the jobs of a file, in the folder `runs` beside it, until `watch` raises KeyboardInterrupt. options: of the
    supervisor.
    """
    supervisor = Supervisor(path, launcher, path.parent / "runs", watch=watch, **options)
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    return supervisor


def all_train(supervisor: Supervisor) -> bool:
    """Whether every job trains with the shares that it was given last."""
    return all(job.placed and job.is_current for job in supervisor.jobs.values())


def command_exit_code(function: Callable[[], None], patience_s: float) -> int | None:
    """Run a function as a command of its own, and return its exit code; None if it does not end in time."""
    command = multiprocessing.get_context("spawn").Process(target=function)
    command.start()
    command.join(patience_s)
    code = command.exitcode
    command.kill()
    return code
