"""What is observed of a node: results that arrive, and the resources of its processes."""

from __future__ import annotations

import re
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_SMAPS = re.compile(r"^(Pss_Anon|Pss_Shmem):\s+(\d+) kB$", re.M)
#: Longest time from the end of the node to the end of its last process.
_END_S = 5.0


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

    def between(self, begin_s: float, end_s: float) -> list[float]:
        """Latencies of results received in [begin_s, end_s)."""
        return self.latency_ms[self._range(begin_s, end_s)].tolist()

    def times(self, begin_s: float, end_s: float) -> list[float]:
        """Times of results received in [begin_s, end_s)."""
        return self.at_s[self._range(begin_s, end_s)].tolist()

    def first_after(self, fault_s: float) -> float | None:
        """Time of the first result whose image was taken after fault_s; None: there is none."""
        begin = bisect_left(self.at_s, fault_s)
        found = zip(self.at_s[begin:], self.latency_ms[begin:], strict=True)
        return next((at_s for at_s, latency_ms in found if at_s - latency_ms / 1e3 > fault_s), None)

    def __len__(self) -> int:
        return len(self.at_s)

    def _range(self, begin_s: float, end_s: float) -> slice:
        return slice(bisect_left(self.at_s, begin_s), bisect_left(self.at_s, end_s))


@dataclass(frozen=True)
class NodeSample:
    """Resources of the node, engine processes included. at_s: monotonic clock. cpu_s: CPU time since the start.

    memory_bytes: heap, stacks and shared memory, each shared page once. The pages of mapped files are left out: their
    share depends on other programs that use the same libraries. gpu_bytes: reserved on GPUs.
    """

    at_s: float
    memory_bytes: int
    threads: int
    files: int
    cpu_s: float = 0.0
    gpu_bytes: int = 0


class ProcessTree:
    """A process and its descendants. pid: the root process. Raises psutil.NoSuchProcess if it does not exist."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu_s: dict[psutil.Process, float] = {}  # of all processes so far

    def sample(self, gpu_bytes: int = 0) -> NodeSample:
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
        return NodeSample(time.monotonic(), memory, threads, files, sum(self._cpu_s.values()), gpu_bytes)

    def left(self) -> list[str]:
        """After the end of the root process: the processes that still run _END_S later."""
        _, alive = psutil.wait_procs(self._cpu_s, timeout=_END_S)
        found = []
        for process in alive:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"process {process.pid} ({' '.join(process.cmdline())[:200]})")
        return found


def _memory_bytes(process: psutil.Process) -> int:
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8")
    except OSError:  # the process has ended
        text = ""
    found = [1024 * int(kib) for _, kib in _SMAPS.findall(text)]
    return sum(found) if found else int(process.memory_full_info().uss)  # before Linux 5.4


class ResourceSampler:
    """Takes samples in a thread, so that the observer's receipt of results is not delayed: the kernel needs over 10 ms
    to add up the memory of an engine process of 650 MB.

    sample: takes a sample and keeps it; psutil.NoSuchProcess, if the node has just ended, is ignored.
    """

    def __init__(self, sample: Callable[[], None]) -> None:
        self._sample = sample
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="samples")
        self._running: Future[None] | None = None
        self._next_s = 0.0

    def sample_if_due(self, period_s: float) -> None:
        """Begin a sample if the last one began at least `period_s` ago and has ended. Raises what `sample` raised."""
        if self._running is not None:
            if not self._running.done():
                return
            self._running.result()
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + period_s
            self._running = self._pool.submit(self._take)

    def close(self) -> None:
        """Wait for the sample in progress. May be called twice."""
        self._pool.shutdown()

    def _take(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self._sample()
