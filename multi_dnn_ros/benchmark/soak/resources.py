"""Memory, threads and files of the node's process and its engine processes at one moment, read from /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from multi_dnn_ros.benchmark.process_tree import belongs_to_ros

_SMAPS = re.compile(r"^(Pss|Pss_Anon|Pss_Shmem):\s+(\d+) kB$", re.M)
_SHM = "/dev/shm/"
#: Longest time from the end of the node to the end of its last process.
_END_S = 5.0


@dataclass(frozen=True)
class ProcessResources:
    """Sums over processes. anonymous_bytes: heap and stacks, proportionally where a fork shares them. shared_bytes:
    shared memory, proportionally: each page counts once over all processes that map it. pss_bytes: both, and the pages
    of mapped files, which also depend on other programs that use the same libraries.
    """

    anonymous_bytes: int = 0
    shared_bytes: int = 0
    pss_bytes: int = 0
    threads: int = 0
    files: int = 0
    processes: int = 0


@dataclass(frozen=True)
class SoakSample:
    """at_s: monotonic clock. engines: all descendants of the node's process. gpu_bytes: reserved by the engines."""

    at_s: float
    node: ProcessResources
    engines: ProcessResources
    gpu_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """Anonymous and shared memory of the node and its engine processes."""
        return sum(held.anonymous_bytes + held.shared_bytes for held in (self.node, self.engines))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of the node and its engine processes."""
        return self.node.shared_bytes + self.engines.shared_bytes


@dataclass
class NodeResources:
    """Samples a node's process and its descendants, and remembers what must be gone after the end of the node.

    pid: the node's process. Raises psutil.NoSuchProcess if it does not exist.
    """

    pid: int
    _seen: set[psutil.Process] = field(default_factory=set)
    _entries: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._root = psutil.Process(self.pid)

    def sample(self, at_s: float, gpu_bytes: int = 0) -> SoakSample:
        """Sample all processes. Raises psutil.NoSuchProcess if the node's process has ended."""
        children = self._root.children(recursive=True)
        self._seen.update((self._root, *children))
        node = resources_of([self._root])
        if not node.processes:
            raise psutil.NoSuchProcess(self.pid)
        for process in (self._root, *children):
            self._entries |= shared_memory_entries(process.pid)
        return SoakSample(at_s, node, resources_of(children), gpu_bytes)

    def serves(self, pid: int) -> bool:
        """Whether this is a descendant of the node's process, which may have ended."""
        with suppress(psutil.NoSuchProcess):
            return any(child.pid == pid for child in self._root.children(recursive=True))
        return False

    def left(self) -> list[str]:
        """After the node's end: its processes that still run, and its entries of /dev/shm that still exist.

        Python's resource tracker, a child of the node's process, ends after it: processes have _END_S for that.
        """
        _, alive = psutil.wait_procs(self._seen, timeout=_END_S)
        running = [process for process in alive if _runs(process)]
        entries = [name for name in sorted(self._entries) if os.path.exists(_SHM + name)]
        return [*(_described(process) for process in running), *(_SHM + name for name in entries)]


def resources_of(processes: Iterable[psutil.Process]) -> ProcessResources:
    """Sums over those of `processes` that still run."""
    sums = [0] * 6
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found = (*_memory(process), process.num_threads(), process.num_fds(), 1)
            sums = [total + value for total, value in zip(sums, found, strict=True)]
    return ProcessResources(*sums)


def shared_memory_entries(pid: int) -> set[str]:
    """Names in /dev/shm that a process maps, except those of ROS 2."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:  # the process has ended
        return set()
    names = {line.partition(_SHM)[2].removesuffix(" (deleted)") for line in maps.splitlines() if _SHM in line}
    return {name for name in names if not belongs_to_ros(name)}


def _memory(process: psutil.Process) -> tuple[int, int, int]:
    """Anonymous, shared and proportional memory in bytes. Raises psutil.NoSuchProcess."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8")
    except OSError:  # the process has ended, or a kernel before 4.14
        text = ""
    found = {key: int(kib) * 1024 for key, kib in _SMAPS.findall(text)}
    if "Pss_Anon" in found:
        return found["Pss_Anon"], found["Pss_Shmem"], found["Pss"]
    held = process.memory_full_info()  # before Linux 5.4 the kinds are not separate
    return held.uss, 0, held.pss


def _described(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        command = " ".join(process.cmdline())[:200]
        return f"process {process.pid} ({command}), {process.status()}, child of process {process.ppid()}"
    return f"process {process.pid}"


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
