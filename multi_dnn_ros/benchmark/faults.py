"""Fault injection for engine processes: signals, an exit while configuring, memory exhaustion."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from multi_dnn_ros.serving import default_build
from multi_dnn_ros.serving.host import Build
from multi_dnn_ros.settings.schema import NodeConfig

KINDS = ("SIGKILL", "SIGSEGV", "SIGSTOP", "exit in configure", "allocation failure")

#: Duration of a memory limit.
_MEMORY_LIMIT_S = 2.0
#: Share of faults that target a serving process; the rest target any.
_SERVING_SHARE = 0.7
_EXIT_CODE = 9


@dataclass(frozen=True)
class ExitingBuild:
    """A Build that deletes the file `flag` and exits its process if that file exists. build: the wrapped Build."""

    build: Build
    flag: str

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of the wrapped Build; see :func:`multi_dnn_ros.serving.default_build.modules_of`."""
        return default_build.modules_of(self.build)

    def __call__(self, config: NodeConfig, progress: Callable[[str], None]) -> Any:
        """Call `build` if there is no such file, which is the usual case."""
        try:
            os.unlink(self.flag)
        except FileNotFoundError:
            return self.build(config, progress)
        os._exit(_EXIT_CODE)


@dataclass(frozen=True)
class Fault:
    """An injected fault. at_s: seconds since the start of the run. serving: whether the process was serving."""

    at_s: float
    kind: str
    serving: bool


class Faults:
    """Injects faults. flag: file of the ExitingBuild. serving: returns the IDs of the serving processes."""

    def __init__(self, seed: int, flag: Path, serving: Callable[[], set[int]]) -> None:
        self._random = random.Random(seed)
        self._flag = flag
        self._serving = serving
        self._timers: list[threading.Timer] = []
        self._next_kinds: list[str] = []
        self.injected: list[Fault] = []

    def pause_s(self, shortest_s: float, longest_s: float) -> float:
        """Random time until the next fault."""
        return self._random.uniform(shortest_s, longest_s)

    def inject(self, at_s: float) -> None:
        """Inject one fault into one process, if there is one. All kinds are equally frequent."""
        only_serving = self._random.random() < _SERVING_SHARE
        serving, every = self._serving(), set(engine_pids())
        targets = (serving & every if only_serving else every) or every
        if not targets:
            return
        if not self._next_kinds:
            self._next_kinds = self._random.sample(KINDS, len(KINDS))
        kind, pid = self._next_kinds.pop(), self._random.choice(sorted(targets))
        with suppress(psutil.Error, ProcessLookupError):  # the process has just ended
            self._inject_into(pid, kind)
            self.injected.append(Fault(at_s, kind, pid in serving))

    def end(self) -> None:
        """Stop injecting and lift the limits still in force."""
        for timer in self._timers:
            timer.cancel()
            timer.function()
        self._timers.clear()
        self._flag.unlink(missing_ok=True)

    def _inject_into(self, pid: int, kind: str) -> None:
        if kind == "exit in configure":  # exits when the next process configures
            self._flag.touch()
            os.kill(pid, signal.SIGKILL)
        elif kind == "allocation failure":
            self._limit_memory(psutil.Process(pid))
        else:
            os.kill(pid, signal.Signals[kind])

    def _limit_memory(self, process: psutil.Process) -> None:
        """Deny new memory for _MEMORY_LIMIT_S."""
        _, hard = process.rlimit(psutil.RLIMIT_AS)
        process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms, hard))

        def lift_limit() -> None:
            with suppress(psutil.Error):
                process.rlimit(psutil.RLIMIT_AS, (hard, hard))

        timer = threading.Timer(_MEMORY_LIMIT_S, lift_limit)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)


def engine_pids() -> list[int]:
    """Process IDs of the running engine processes that this process started."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any("engine_main" in part for part in child.cmdline()):
                found.append(child.pid)
    return found
