"""CPU time, context switches and page faults of every thread of a process, as Linux counts them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_SWITCHES = ("voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")


@dataclass(frozen=True)
class Usage:
    """Counts of one thread or of several. cpu_ns: user and system. waited_ns: ready to run, and without a core.

    faults: page faults that needed no reading from a disk. switches: times that it gave up its core, of itself.
    preemptions: times that the core was taken from it.
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
    """A thread of a process. started: in ticks since the system's start, as numbers of threads are used again."""

    number: int
    started: int


@dataclass(frozen=True)
class ProcessUsage:
    """The threads that a process has at one moment: names and usage. cpu_ns: of the process, ended threads included."""

    pid: int
    names: Mapping[ThreadKey, str]
    threads: Mapping[ThreadKey, Usage]
    cpu_ns: int


def read_process(pid: int, proc: Path = Path("/proc")) -> ProcessUsage:
    """FileNotFoundError or ProcessLookupError when there is no such process. proc: for tests."""
    names, threads = {}, {}
    for folder in sorted((proc / str(pid) / "task").iterdir(), key=lambda path: int(path.name)):
        try:
            name, fields = _stat(folder)
            key = ThreadKey(int(folder.name), int(fields[19]))
            threads[key] = _usage(folder, fields)
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has just ended
        names[key] = name
    _, fields = _stat(proc / str(pid))
    return ProcessUsage(pid, names, threads, _cpu_ns(fields))


def used_between(first: ProcessUsage, last: ProcessUsage, group: Callable[[int, str], str]) -> dict[str, Usage]:
    """What the threads of each group used from `first` to `last`.

    group: from a thread's number in the process (0 for the main thread) and name to its group. Threads that ended
    meanwhile are in none.
    """
    found: dict[str, Usage] = {}
    for key, usage in last.threads.items():
        place = group(key.number - last.pid, last.names[key])
        found[place] = found.get(place, Usage()) + (usage - first.threads.get(key, Usage()))
    return found


def _stat(folder: Path) -> tuple[str, list[str]]:
    """Name, and the fields behind it; field 0 is the state, the third of proc(5)."""
    text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    name, _, rest = text.partition("(")[2].rpartition(")")  # a name may hold brackets
    return name, rest.split()


def _cpu_ns(fields: list[str]) -> int:
    return (int(fields[11]) + int(fields[12])) * _TICK_NS


def _usage(folder: Path, fields: list[str]) -> Usage:
    cpu_ns, waited_ns = _cpu_ns(fields), 0
    with suppress(FileNotFoundError):  # exact, where the kernel has it; `stat` counts in hundredths of a second
        cpu_ns, waited_ns = (int(value) for value in (folder / "schedstat").read_text().split()[:2])
    status = (folder / "status").read_text(encoding="utf-8", errors="replace").split()
    switches, preemptions = (int(status[status.index(key) + 1]) for key in _SWITCHES)
    return Usage(cpu_ns, waited_ns, int(fields[7]), switches, preemptions)
