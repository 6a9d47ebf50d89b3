"""Measures training steps of jobs on one unit, and all-reduce between two units, for the simulator."""

from __future__ import annotations

import gc
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

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.fleet.job_training import JobTraining, read_data
from multi_dnn_ros.fleet.jobs_file import FleetJob
from multi_dnn_ros.fleet.local_launcher import process_context, start_process
from multi_dnn_ros.fleet.networks import load_trainable
from multi_dnn_ros.fleet.rank_process import use_unit
from multi_dnn_ros.fleet.shares import TENTHS
from multi_dnn_ros.fleet.step_times import Interconnect, NetworkTimes, StepTime
from multi_dnn_ros.planning.batch_units import Unit
from multi_dnn_ros.training.checks import CheckedData
from multi_dnn_ros.training.datasets import framing_options
from multi_dnn_ros.training.trainable import Trainable

#: Tenths of the global batch that are measured, and steps before each measurement.
_MEASURED, _WARM_UP = (1, 2, 5, 10), 2
#: Elements of the messages (float32: 4 kB and 16 MB), and repetitions.
_SMALL, _LARGE, _REPEATS = 1 << 10, 1 << 22, 20
_TIMEOUT = timedelta(seconds=120)


class StepMeasurement:
    """Measures jobs in turn, on one unit. A data set that several jobs use is read once."""

    def __init__(self, unit: Unit, process_s: float = 0.0, samples: int = 5) -> None:
        """process_s: seconds until the process of a rank has initialized its unit. samples: steps per batch size."""
        self._unit = unit
        self._process_s = process_s
        self._samples = samples
        self._data: dict[Any, tuple[CheckedData, float]] = {}

    def measure(self, job: FleetJob) -> NetworkTimes:
        """Times of the job's own steps (data, augmentation, optimizer, precision), without exchange of gradients, at 1,
        2, 5 and 10 tenths of its batch.

        Raises TrainingError, ModelError, DatasetError, MissingExtra, as the job's training would.
        """
        # One more than are done, because the last step of a training prepares no further batch.
        steps = 2 + len(_MEASURED) * (_WARM_UP + self._samples + 1)
        job = job.model_copy(update={"steps": steps, "epochs": None})
        device = torch.device(self._unit.device)
        before = torch.get_num_threads()
        use_unit(self._unit)
        try:
            begin = time.monotonic()
            trainable = load_trainable(job)
            built_s = time.monotonic() - begin
            data, read_s = self._read(job, trainable)
            begin = time.monotonic()
            training = JobTraining(job, device, data, trainable)
            training.take((TENTHS,), 0)
            training.step()
            _wait(device)
            start_s = self._process_s + built_s + read_s + time.monotonic() - begin
            rows = tuple(self._row(training, device, tenths) for tenths in _MEASURED)
        finally:
            torch.set_num_threads(before)
        bytes_ = sum(p.numel() * p.element_size() for p in training.network.parameters() if p.requires_grad)
        times = NetworkTimes(
            model=trainable.model, size=trainable.size, gradient_bytes=bytes_, steps=rows, start_s=start_s
        )
        del training, trainable
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return times

    def _read(self, job: FleetJob, trainable: Trainable) -> tuple[CheckedData, float]:
        """The data of the job, and the seconds that reading it took."""
        # Images may be resized when they are read, as the network requires.
        framing = (trainable.size, *sorted(framing_options(trainable.framing).items()))
        key = (job.data, job.scenes, job.num_classes, trainable.task, trainable.labels, framing)
        if key not in self._data:
            begin = time.monotonic()
            data = read_data(job, trainable)
            self._data[key] = data, time.monotonic() - begin
        return self._data[key]

    def _row(self, training: JobTraining, device: torch.device, tenths: int) -> StepTime:
        training.take((tenths, TENTHS - tenths), 0)
        walls, busies = _time_steps(training.step, device, self._samples, torch.get_num_threads())
        wall = statistics.median(walls)
        busy = min(statistics.median(busies), wall)
        batch = training.job.global_batch * tenths // TENTHS
        return StepTime(batch=batch, step_ms=wall * 1e3, busy_ms=busy * 1e3, samples=self._samples)


def _time_steps(
    once: Callable[[], object], device: torch.device, samples: int, threads: int
) -> tuple[list[float], list[float]]:
    """Seconds of each step, and seconds in which the unit computed: CPU time per thread, or kernel time of one step.

    Steps are counted without the time that this thread waited for a core that other programs used. On a GPU, a step
    ends when the host has read its loss, as in a rank: the GPU may still update the weights and prepare the next batch,
    which is part of the time of the next step. The kernels of both are counted.
    """
    for _ in range(_WARM_UP):
        once()
    walls, busies = [], []
    for _ in range(samples):
        # In this order, all waiting that is subtracted is part of the time from which it is subtracted.
        begin, waited, cpu = time.monotonic(), _waited_s(), time.process_time()
        once()
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


def _kernel_s(once: Callable[[], object]) -> float:
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()  # a step ends before the kernels of its optimizer
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        once()
        torch.cuda.synchronize()
    return float(sum(event.self_device_time_total for event in found.key_averages())) / 1e6


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_interconnect(units: Sequence[Unit]) -> tuple[Interconnect, float]:
    """All-reduce between the first two units: gloo between CPU processes, NCCL between GPUs; and the seconds from the
    start of these processes, which are started as ranks are, until they have initialized their units.

    Raises CommandError.
    """
    context = process_context()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        queue: Any = context.Queue()
        arguments = [(rank, [unit.device for unit in units[:2]], str(Path(folder) / "store"), queue) for rank in (0, 1)]
        processes = [context.Process(target=_exchange, args=each, daemon=True) for each in arguments]
        for process in processes:
            start_process(process)
        for process in processes:
            process.join(_TIMEOUT.total_seconds())
        if any(process.exitcode != 0 for process in processes):
            for process in processes:
                process.kill()
            raise CommandError(f"all-reduce between {units[0].name} and {units[1].name} failed")
        (small, large), ready = queue.get()
    bandwidth = _LARGE * 4 / max(large - small, 1e-9) / 1e9
    return Interconnect(latency_us=small * 1e6, bandwidth_gb_s=bandwidth), ready - begin


def _exchange(rank: int, devices: Sequence[str], store: str, queue: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = torch.device(devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.empty(1, device=device)
    ready = time.monotonic()  # a clock of the machine, not of the process
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
        queue.put((tuple(times), ready))
