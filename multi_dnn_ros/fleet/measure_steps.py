"""Measures training steps of networks on one unit, and all-reduce between two units, for the simulator."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.utils import _pytree as pytree

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.fleet.shares import TENTHS
from multi_dnn_ros.fleet.step_times import Interconnect, NetworkTimes, StepTime
from multi_dnn_ros.planning.batch_units import Unit
from multi_dnn_ros.training.loop import set_training
from multi_dnn_ros.training.precision import autocast
from multi_dnn_ros.training.trainable import Trainable

#: Tenths of the global batch that are measured.
_MEASURED = (1, 2, 5, 10)
#: Elements of the messages (float32: 4 kB and 16 MB), and repetitions.
_SMALL, _LARGE, _REPEATS = 1 << 10, 1 << 22, 20
_TIMEOUT = timedelta(seconds=120)


def measure_network(network: Trainable, unit: Unit, batch: int, precision: str, samples: int = 5) -> NetworkTimes:
    """Step times (forward, loss, backward, SGD) at 1, 2, 5 and 10 tenths of `batch`, on random images.

    precision: fp32, bf16 (the forward pass on a GPU), or fp64 (everything). The loss of a classifier is its own. For
    other networks, whose losses need boxes, masks or other ground truth, it is the mean square of all outputs.
    """
    device = torch.device(unit.device)
    dtype = torch.float64 if precision == "fp64" else torch.float32
    module = network.network.to(device, dtype)
    set_training(module, True)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-6, momentum=0.9)
    width, height = network.size
    rows = []
    before = torch.get_num_threads()
    if unit.threads:
        torch.set_num_threads(unit.threads)
    try:
        for size in dict.fromkeys(max(1, batch * tenths // TENTHS) for tenths in _MEASURED):
            images = torch.rand(size, 3, height, width, device=device, dtype=dtype)
            step = _step(network, optimizer, images, "fp32" if precision == "fp64" else precision)
            walls, busies = _time_steps(step, device, samples, torch.get_num_threads())
            wall = statistics.median(walls)
            busy = min(statistics.median(busies), wall)
            rows.append(StepTime(batch=size, step_ms=wall * 1e3, busy_ms=busy * 1e3, samples=samples))
    finally:
        torch.set_num_threads(before)
    bytes_ = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    return NetworkTimes(model=network.model, size=network.size, gradient_bytes=bytes_, steps=tuple(rows))


def _step(
    network: Trainable, optimizer: torch.optim.Optimizer, images: torch.Tensor, precision: str
) -> Callable[[], None]:
    class_loss = network.loss if network.task == "classes" else None
    batch = {"image": images, "label": torch.zeros(len(images), dtype=torch.long, device=images.device)}

    def once() -> None:
        with autocast(images.device, precision):
            outputs = network.network(images)
        loss = class_loss(outputs, batch) if class_loss is not None else _mean_square(outputs)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return once


def _mean_square(outputs: Any) -> torch.Tensor:
    """Sum of the mean squares of all floating-point tensors in the outputs, which may be nested."""
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    parts = [leaf.square().mean() for leaf in leaves if leaf.is_floating_point()]
    return torch.stack([part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts]).sum()


def _time_steps(
    once: Callable[[], None], device: torch.device, samples: int, threads: int
) -> tuple[list[float], list[float]]:
    """Seconds of each step, and seconds in which the unit computed: CPU time per thread, or kernel time of one step.

    Steps are counted without the time that this thread waited for a core that other programs used.
    """
    for _ in range(2):
        once()
    walls, busies = [], []
    for _ in range(samples):
        _wait(device)
        # In this order, all waiting that is subtracted is part of the time from which it is subtracted.
        begin, waited, cpu = time.monotonic(), _waited_s(), time.process_time()
        once()
        _wait(device)
        busies.append((time.process_time() - cpu) / threads)
        waited = _waited_s() - waited
        walls.append(time.monotonic() - begin - waited)
    return walls, [_kernel_s(once)] if device.type == "cuda" else busies


def _waited_s() -> float:
    """Seconds that this thread has waited for a core; 0 if the system does not report it."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _kernel_s(once: Callable[[], None]) -> float:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        once()
        torch.cuda.synchronize()
    return float(sum(event.self_device_time_total for event in found.key_averages())) / 1e6


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_interconnect(units: Sequence[Unit]) -> Interconnect:
    """All-reduce between the first two units: gloo between CPU processes, NCCL between GPUs. Raises CommandError."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue: Any = context.Queue()
        arguments = [(rank, [unit.device for unit in units[:2]], str(Path(folder) / "store"), queue) for rank in (0, 1)]
        processes = [context.Process(target=_exchange, args=each, daemon=True) for each in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_TIMEOUT.total_seconds())
        if any(process.exitcode != 0 for process in processes):
            for process in processes:
                process.kill()
            raise CommandError(f"all-reduce between {units[0].name} and {units[1].name} failed")
        small, large = queue.get()
    return Interconnect(latency_us=small * 1e6, bandwidth_gb_s=_LARGE * 4 / max(large - small, 1e-9) / 1e9)


def _exchange(rank: int, devices: Sequence[str], store: str, queue: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = torch.device(devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", store=FileStore(store, 2), rank=rank, world_size=2,
        timeout=_TIMEOUT,
    )  # fmt: skip
    times = []
    for count in (_SMALL, _LARGE):
        values = torch.zeros(count, device=device)
        samples = []
        for _ in range(_REPEATS):
            _wait(device)
            begin = time.monotonic()
            dist.all_reduce(values)
            _wait(device)
            samples.append(time.monotonic() - begin)
        times.append(statistics.median(samples))
    dist.destroy_process_group()
    if rank == 0:
        queue.put(tuple(times))
