"""The interconnect of training processes: all-reduces measured over message sizes, with a fit of latency and bandwidth.

Model: a ring all-reduce of n bytes between N processes takes 2 (N - 1) steps of latency a, and moves 2 (N - 1) / N n
bytes at bandwidth b (Hockney 1994; Thakur, Rabenseifner, Gropp 2005). Between GPUs of a host, one latency counts per
all-reduce instead, because most of it is the launch of NCCL's kernel (46 us for 4 kB on two H200s, and on four).
With K hosts of G processes each, a ring runs inside each host, and one between the hosts on one G-th per process; the
processes of a host share its link.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from multi_dnn_ros.profiling.training.launch_delay import LaunchDelay
from multi_dnn_ros.training.distributed import wait_for_all

_REPEATS = 5
_BLOCK_BYTES = 1 << 22
_MAX_CALLS = 16
_SMALLEST = 4 << 10
#: To measure the overlap: runs of each combination, maximum numbers of messages and of their buffers, maximum size of a
#: message.
_OVERLAP_RUNS, _MAX_MESSAGES, _MAX_BUFFERS, _MESSAGE_BYTES = 7, 512, 64, 1 << 22


@dataclass(frozen=True)
class Sample:
    """An all-reduce of `bytes` between `processes`. seconds: median duration."""

    bytes: int
    processes: int
    seconds: float


@dataclass(frozen=True)
class Link:
    """latency_s: of one step of the ring or, if not per_step, of an all-reduce. bytes_per_s: sent by one process."""

    latency_s: float
    bytes_per_s: float
    per_step: bool = True

    def seconds(self, count: float, processes: int) -> float:
        """Duration of an all-reduce of `count` bytes between `processes`; 0 for one."""
        if processes < 2 or count <= 0:
            return 0.0
        steps = 2 * (processes - 1)
        return self.latency_s * (steps if self.per_step else 1) + steps * count / processes / self.bytes_per_s


@dataclass(frozen=True)
class Topology:
    """inside: the link between the `per_host` processes of a host. between: the link between hosts, None if unknown."""

    inside: Link
    between: Link | None = None
    per_host: int = 1 << 30

    def seconds(self, count: float, processes: int) -> float:
        """Duration of an all-reduce. Raises ValueError for several hosts without a link between them."""
        if processes <= self.per_host:
            return self.inside.seconds(count, processes)
        if self.between is None:
            raise ValueError(f"{processes} processes, {self.per_host} per host: the link between hosts is not known")
        hosts = -(-processes // self.per_host)
        return self.inside.seconds(count, self.per_host) + self.between.seconds(count, hosts)


@dataclass(frozen=True)
class Overlap:
    """Factors, at least 1, by which computation and communication take longer while they run at the same time."""

    compute: float = 1.0
    communication: float = 1.0


def message_sizes(largest: int) -> list[int]:
    """4 kB to at most `largest` bytes, each size four times the previous one."""
    sizes = [_SMALLEST]
    while sizes[-1] * 4 <= largest:
        sizes.append(sizes[-1] * 4)
    return sizes


def measure_all_reduce(sizes: Sequence[int], device: torch.device, progress: Callable[[], None]) -> list[Sample]:
    """Time all-reduces of these sizes in bytes. All processes call it, and each gets its own times.

    progress: called after each size.
    """
    samples = []
    for size in sizes:
        buffer = torch.zeros(max(1, size // 4), device=device)
        calls = max(1, min(_MAX_CALLS, _BLOCK_BYTES // size))
        times = []
        for _ in range(_REPEATS + 1):
            wait_for_all()
            _synchronize(device)
            started = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(buffer)
            _synchronize(device)
            times.append((time.perf_counter() - started) / calls)
        samples.append(Sample(buffer.numel() * 4, dist.get_world_size(), statistics.median(times[1:])))
        progress()
    return samples


def fit_link(samples: Sequence[Sample], *, per_step: bool = True) -> Link:
    """Fit a link by least squares of the relative errors; exact for samples computed from a Link.

    per_step: see Link. The latency is never negative. Raises ValueError for fewer than two sizes, or for one process.
    """
    if len({sample.bytes for sample in samples}) < 2 or any(sample.processes < 2 for sample in samples):
        raise ValueError("latency and bandwidth need all-reduces of two sizes between at least two processes")
    # seconds = latency * (steps or 1) + inverse bandwidth * moved; each equation divided by its seconds
    rows = [
        (
            (2 * (sample.processes - 1) if per_step else 1) / sample.seconds,
            2 * (sample.processes - 1) / sample.processes * sample.bytes / sample.seconds,
        )
        for sample in samples
    ]
    aa, bb = sum(a * a for a, _ in rows), sum(b * b for _, b in rows)
    ab, a1, b1 = sum(a * b for a, b in rows), sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    latency = (a1 * bb - b1 * ab) / determinant if determinant > 0 else 0.0
    inverse = (b1 * aa - a1 * ab) / determinant if determinant > 0 else 0.0
    if latency < 0.0 or inverse <= 0.0:
        latency, inverse = 0.0, b1 / bb
    return Link(latency, 1.0 / inverse, per_step)


def measure_overlap(compute: Callable[[], object], device: torch.device, samples: Sequence[Sample]) -> Overlap:
    """Run `compute` alone, messages alone, and both at the same time. All processes call it.

    compute: launches a computation that takes longer than the messages. samples: all-reduces from which the number of
    messages is derived, so that they take about a third of the computation.
    """
    size = min(_MESSAGE_BYTES, max(sample.bytes for sample in samples))
    message_s = min(sample.seconds for sample in samples if sample.bytes >= size)
    run = _GpuRun(device) if device.type == "cuda" else _run_on_cpu
    alone_s = _medians(lambda: run(compute, []))[1]
    box = torch.tensor([max(1.0, alone_s / 3 / message_s)], device=device)
    dist.broadcast(box, src=0)
    count = min(_MAX_MESSAGES, int(box))
    buffers = [torch.zeros(max(1, size // 4), device=device) for _ in range(min(_MAX_BUFFERS, count))]
    messages = [buffers[number % len(buffers)] for number in range(count)]
    communication_s = _medians(lambda: run(None, messages))[0]
    together_s, whole_s = _medians(lambda: run(compute, messages))
    together_s = min(together_s, whole_s)
    # The computation was slower while the messages were under way, and then went on at full speed.
    advanced = max(alone_s - (whole_s - together_s), together_s / 100)
    slower = max(1.0, together_s / advanced)
    longer = max(1.0, together_s / communication_s)
    # At worst computation and communication take turns.
    if 1 / slower + 1 / longer < 1.0:
        longer = slower / (slower - 1.0)
    return Overlap(slower, longer)


def _medians(run: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """Medians of both times over :data:`_OVERLAP_RUNS` runs after a warm-up; all processes begin each run together."""
    found = []
    for _ in range(1 + _OVERLAP_RUNS):
        wait_for_all()
        found.append(run())
    return statistics.median(first for first, _ in found[1:]), statistics.median(second for _, second in found[1:])


def _begin(messages: Sequence[torch.Tensor]) -> list[dist.Work]:
    """Begin an all-reduce of each message."""
    works = [dist.all_reduce(buffer, async_op=True) for buffer in messages]
    return [work for work in works if work is not None]  # None only for a process outside the group


def _run_on_cpu(compute: Callable[[], object] | None, messages: Sequence[torch.Tensor]) -> tuple[float, float]:
    """Seconds until the messages are done, and until the computation is done."""
    ended: list[float] = []
    started = time.perf_counter()
    works = _begin(messages)
    if works:
        works[-1].get_future().add_done_callback(lambda _: ended.append(time.perf_counter() - started))
    if compute is not None:
        compute()
    computed_s = time.perf_counter() - started
    for work in works:
        work.wait()
    return (ended[0] if ended else time.perf_counter() - started), computed_s


class _GpuRun:
    """Like :func:`_run_on_cpu`, but timed by the GPU.

    The GPU begins only after the host has launched everything: otherwise short messages would end before the
    computation is launched.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._delay = LaunchDelay()
        self._side = torch.cuda.Stream(device)

    def __call__(self, compute: Callable[[], object] | None, messages: Sequence[torch.Tensor]) -> tuple[float, float]:
        begun, communicated, computed = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        _synchronize(self._device)
        with self._delay.applied():
            begun.record()
            works = _begin(messages)
            with torch.cuda.stream(self._side):
                self._side.wait_event(begun)
                for work in works:
                    work.wait()  # makes this stream wait, not the host
                communicated.record()
            if compute is not None:
                compute()
            computed.record()
        _synchronize(self._device)
        return begun.elapsed_time(communicated) / 1e3, begun.elapsed_time(computed) / 1e3


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
