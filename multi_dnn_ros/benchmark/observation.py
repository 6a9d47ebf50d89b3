"""What is observed of a node: results that arrive, and the resources of its processes."""

from __future__ import annotations

import re
import time
from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from multi_dnn_ros.ros.board import Reading

_SMAPS = re.compile(r"^(Pss_Anon|Pss_Shmem):\s+(\d+) kB$", re.M)

Floats = npt.NDArray[np.float64]


class Receipts:
    """Results received on one stream. at_s: monotonic clock. latency_ms: from the image's stamp to the receipt.

    Stored in arrays: as objects they would lengthen the garbage collector's pauses and thereby the latencies.
    """

    def __init__(self) -> None:
        self.at_s = array("d")
        self.latency_ms = array("d")

    def add(self, at_s: float, latency_ms: float) -> None:
        self.at_s.append(at_s)
        self.latency_ms.append(latency_ms)

    def between(self, begin_s: float, end_s: float) -> tuple[Floats, Floats]:
        """at_s and latency_ms of the results received in [begin_s, end_s)."""
        at_s = np.array(self.at_s)
        inside = (begin_s <= at_s) & (at_s < end_s)
        return at_s[inside], np.array(self.latency_ms)[inside]

    def has_image_after(self, fault_s: float) -> bool:
        """Whether there is a result whose image was taken after fault_s."""
        return bool((np.array(self.at_s) - np.array(self.latency_ms) / 1e3 > fault_s).any())

    def __len__(self) -> int:
        return len(self.at_s)


@dataclass(frozen=True)
class NodeSample:
    """Resources of the node, engine processes included. at_s: monotonic clock. cpu_s: CPU time since the start.

    memory_bytes: heap, stacks and shared memory, each shared page once. The pages of mapped files are left out: their
    share depends on other programs that use the same libraries. gpu_bytes: reserved on GPUs. sensors: of the whole
    computer.
    """

    at_s: float
    memory_bytes: int
    threads: int
    files: int
    cpu_s: float = 0.0
    gpu_bytes: int = 0
    sensors: Reading = field(default_factory=Reading)


def cpu_cores(samples: list[NodeSample]) -> float:
    """Average number of busy cores from the first to the last sample; 0.0 for fewer than two."""
    if len(samples) < 2:
        return 0.0
    return (samples[-1].cpu_s - samples[0].cpu_s) / (samples[-1].at_s - samples[0].at_s)


class ProcessTree:
    """A process and its descendants. pid: the root process. Raises psutil.NoSuchProcess if it does not exist."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu_s: dict[psutil.Process, float] = {}  # of all processes so far

    def sample(self, gpu_bytes: int = 0, sensors: Reading | None = None) -> NodeSample:
        """Sample all processes. Raises psutil.NoSuchProcess if the root process has ended."""
        memory = threads = files = processes = 0
        for process in (self._root, *self._root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied), process.oneshot():
                times = process.cpu_times()
                self._cpu_s[process] = times.user + times.system
                memory += _memory_bytes(process)
                threads += process.num_threads()
                files += process.num_fds()
                processes += 1
        if not processes:
            raise psutil.NoSuchProcess(self._root.pid)
        cpu_s = sum(self._cpu_s.values())
        return NodeSample(time.monotonic(), memory, threads, files, cpu_s, gpu_bytes, sensors or Reading())


def _memory_bytes(process: psutil.Process) -> int:
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8")
    except OSError:  # the process has ended
        text = ""
    found = [1024 * int(kib) for _, kib in _SMAPS.findall(text)]
    return sum(found) if found else int(process.memory_full_info().uss)  # before Linux 5.4
