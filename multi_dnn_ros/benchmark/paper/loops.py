"""Closed loops of the DNNs of one process: each DNN starts its next inference on the result of the previous one.

All loops start at the same time and count within a window, so that the counted inferences run while all DNNs are warm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.static_stages import single_launches
from multi_dnn_ros.benchmark.paper.partition import Partition
from multi_dnn_ros.benchmark.paper.tally import Tally, Window
from multi_dnn_ros.engine import DnnTask, Engine, Failure, Frame, Result
from multi_dnn_ros.pipeline.choices import default_workers

_IMAGE = np.zeros((4, 4, 3), np.uint8)
_NOTHING = torch.empty(0)
_DRAIN_S = 60.0
_WORKER_THREAD = "worker-"
#: In a closed loop all cameras have a frame once the previous batch is reported; the delay matters for the first only.
_BATCH_DELAY_NS = 5_000_000


class Loop(Protocol):
    """Runs prepared DNNs."""

    def run(self, window: Window) -> list[Tally]:
        """Run until the end of the window; one tally per DNN."""
        ...

    def close(self) -> None:
        """End its threads."""
        ...


class SequentialLoop:
    """All DNNs in one thread, in sequence; a process with a single DNN uses it, too.

    calls: each issues the work of one inference. wait: waits for its completion. mode: gradient mode of the thread. An
    inference's time is from the DNN's previous result to this one, and includes waiting for the other DNNs.
    """

    def __init__(
        self,
        calls: Sequence[Callable[[], object]],
        wait: Callable[[], None],
        mode: Callable[[], AbstractContextManager[Any]] = torch.inference_mode,
    ) -> None:
        self._calls = calls
        self._wait = wait
        self._mode = mode

    def run(self, window: Window) -> list[Tally]:
        tallies = [Tally(window) for _ in self._calls]
        last = [window.begin_ns - 1] * len(tallies)  # excludes the first round, which had not waited
        now = time.monotonic_ns()
        with self._mode():
            while any(tally.wants_more(now) for tally in tallies):
                for index, (call, tally) in enumerate(zip(self._calls, tallies, strict=True)):
                    began = time.thread_time_ns()
                    call()
                    tally.host_ns += time.thread_time_ns() - began
                    tally.jobs += 1
                    self._wait()
                    now = time.monotonic_ns()
                    tally.add(last[index], now)
                    last[index] = now
        return tallies

    def close(self) -> None:
        pass


class EngineLoop:
    """This package's engine: one thread per DNN, jobs in the shared queue, workers.

    tasks: each camera has a DNN of its own, or all share one DNN that batches their frames. An inference's time is from
    offering the frame to the result, per camera.
    """

    def __init__(self, tasks: Sequence[DnnTask], partition: Partition) -> None:
        self._tasks = tasks
        self._partition = partition

    def run(self, window: Window) -> list[Tally]:
        tallies = {camera: Tally(window) for task in self._tasks for camera in task.cameras}
        failures: list[Failure] = []

        def on_result(result: Result) -> None:
            now = time.monotonic_ns()
            camera = result.frame.camera
            tally = tallies[camera]
            tally.add(result.frame.stamp_ns, now)
            tally.jobs += stages[result.dnn] / result.timing.batch
            if tally.wants_more(now):
                offer(camera)

        def offer(camera: str) -> None:
            engine.offer(_FrameOnDevice(camera, time.monotonic_ns(), _IMAGE))

        stages = {task.name: len(task.stages) for task in self._tasks}
        device = self._partition.device
        engine = Engine(
            self._tasks,
            workers=default_workers(device, len(self._tasks)),
            device=device,
            on_result=on_result,
            on_failure=failures.append,
        )
        engine.start()
        try:
            for camera in tallies:
                offer(camera)
            time.sleep(max(0.0, (window.end_ns - time.monotonic_ns()) / 1e9))
            finished = engine.wait_idle(_DRAIN_S)
            host_ns = _cpu_time_ns(_WORKER_THREAD) + engine.launch_ns()
        finally:
            engine.stop(2.0)
        if failures:
            raise RuntimeError(f"{failures[0].dnn}: {failures[0].message}")
        if not finished:
            raise RuntimeError(f"the engine did not finish its frames within {_DRAIN_S:g} s after the end")
        for tally in tallies.values():  # workers serve all DNNs: distribute their time by number of jobs
            tally.host_ns = round(host_ns * tally.jobs / max(1, sum(each.jobs for each in tallies.values())))
        return list(tallies.values())

    def close(self) -> None:
        pass


class _FrameOnDevice(Frame):
    """A frame whose input is on the device already, so that nothing is uploaded."""

    def tensor(self, device: torch.device) -> torch.Tensor:
        return _NOTHING


def make_task(name: str, chain: tuple[Stage, ...], inputs: Tensors, partition: Partition) -> DnnTask:
    """A DNN whose input is already on the device, as in all other conditions. Its camera has the DNN's name."""
    return DnnTask(
        name, (name,), lambda image: inputs, chain, lambda outputs, size: None, sms=partition.sms or 0,
        single_launch=single_launches({1: chain}),
    )  # fmt: skip


def make_batched_task(
    name: str, cameras: Sequence[str], chains: Mapping[int, tuple[Stage, ...]], inputs: Tensors, partition: Partition
) -> DnnTask:
    """A DNN that batches several cameras. chains: stages by batch size, 1 included."""
    batches = {size: chain for size, chain in chains.items() if size > 1}
    task = make_task(name, chains[1], inputs, partition)
    return replace(
        task,
        cameras=tuple(cameras),
        batches=batches,
        batch_delay_ns=_BATCH_DELAY_NS,
        single_launch=single_launches(chains),
    )


def _cpu_time_ns(prefix: str) -> int:
    """CPU time of this process's threads whose names start with `prefix`."""
    return sum(
        time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.name.startswith(prefix) and thread.ident is not None
    )
