"""CPU time, context switches and page faults of every thread of a process, as Linux counts them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_SWITCHES = ("voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")


@dataclass(frozen=True)
class Usage:
    """What one or several threads used. cpu_ns: user and system time. waited_ns: time ready to run, but without a core.

    faults: page faults that needed no reading from a disk. switches: how often a thread gave up its core voluntarily.
    preemptions: how often the core was taken from a thread.
    """

    cpu_ns: int = 0
    waited_ns: int = 0
    faults: int = 0
    switches: int = 0
    preemptions: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, other: Usage) -> Usage:
        return Usage(*(mine - its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class ThreadKey:
    """A thread of a process. started: in ticks since the system's start, as Linux reuses the numbers of threads."""

    number: int
    started: int


@dataclass(frozen=True)
class ProcessUsage:
    """Names and usage of the threads that a process has at one moment. cpu_ns: includes threads that have ended."""

    pid: int
    names: Mapping[ThreadKey, str]
    threads: Mapping[ThreadKey, Usage]
    cpu_ns: int


def read_process(pid: int) -> ProcessUsage:
    """Read the usage of a process.

    Raises FileNotFoundError or ProcessLookupError if there is no such process.
    """
    names, threads = {}, {}
    for folder in sorted((_PROC / str(pid) / "task").iterdir(), key=lambda path: int(path.name)):
        try:
            name, fields = _stat(folder)
            key = ThreadKey(int(folder.name), int(fields[19]))
            threads[key] = _usage(folder, fields)
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has just ended
        names[key] = name
    _, fields = _stat(_PROC / str(pid))
    return ProcessUsage(pid, names, threads, _cpu_ns(fields))


def used_between(first: ProcessUsage, last: ProcessUsage, group: Callable[[int, str], str]) -> dict[str, Usage]:
    """What the threads of each group used from `first` to `last`.

    group: takes the number of a thread in the process (0 for the main thread) and its name, returns its group. Threads
    that ended in between are not included.
    """
    found: dict[str, Usage] = {}
    for key, usage in last.threads.items():
        name = group(key.number - last.pid, last.names[key])
        found[name] = found.get(name, Usage()) + (usage - first.threads.get(key, Usage()))
    return found


def _stat(folder: Path) -> tuple[str, list[str]]:
    """Name, and the fields after it; field 0 is the state, which proc(5) lists as the third field."""
    text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    name, _, rest = text.partition("(")[2].rpartition(")")  # a name may contain parentheses
    return name, rest.split()


def _cpu_ns(fields: list[str]) -> int:
    return (int(fields[11]) + int(fields[12])) * _TICK_NS


def _usage(folder: Path, fields: list[str]) -> Usage:
    cpu_ns, waited_ns = _cpu_ns(fields), 0
    with suppress(FileNotFoundError):  # exact, if the kernel has it; `stat` counts in hundredths of a second
        cpu_ns, waited_ns = (int(value) for value in (folder / "schedstat").read_text().split()[:2])
    status = (folder / "status").read_text(encoding="utf-8", errors="replace").split()
    switches, preemptions = (int(status[status.index(key) + 1]) for key in _SWITCHES)
    return Usage(cpu_ns, waited_ns, int(fields[7]), switches, preemptions)
