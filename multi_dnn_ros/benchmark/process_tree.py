"""Resource use of a process and all its descendants."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import psutil


def belongs_to_ros(name: str) -> bool:
    """Whether an entry of /dev/shm belongs to DDS or to the tracing of ROS 2 (LTTng): processes share these."""
    return any(part in name for part in ("fastrtps", "fastdds", "cyclone", "lttng"))


@dataclass(frozen=True)
class TreeSample:
    """memory_bytes: proportional set size, so that shared memory counts once. cpu_s: user and system time since the
    processes started, including ended ones as last sampled.
    """

    memory_bytes: int
    threads: int
    files: int
    cpu_s: float
    processes: int


class ProcessTree:
    """A process and its descendants. pid: the root process. Raises psutil.NoSuchProcess if it does not exist."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu_s: dict[tuple[int, float], float] = {}

    def sample(self) -> TreeSample:
        """Sample all processes. Raises psutil.NoSuchProcess if the root process has ended."""
        memory = threads = files = processes = 0
        for process in (self._root, *self._root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied), process.oneshot():
                times = process.cpu_times()
                self._cpu_s[process.pid, process.create_time()] = times.user + times.system
                memory += process.memory_full_info().pss
                threads += process.num_threads()
                files += process.num_fds()
                processes += 1
        if not processes:
            raise psutil.NoSuchProcess(self._root.pid)
        return TreeSample(memory, threads, files, sum(self._cpu_s.values()), processes)
