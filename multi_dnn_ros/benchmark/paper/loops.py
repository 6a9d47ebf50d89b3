"""Closed loops of the DNNs of one process: each DNN starts its next inference on the result of the previous one.

All loops start at the same time and count within a window, so that the counted inferences run while all DNNs are warm.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.backends.captured_network import as_network
from multi_dnn_ros.backends.gates import Gate
from multi_dnn_ros.backends.static_stages import single_launches
from multi_dnn_ros.benchmark.paper.partition import Partition
from multi_dnn_ros.engine import DnnTask, Engine, Failure, Frame, Result
from multi_dnn_ros.pipeline.choices import default_workers

_IMAGE = np.zeros((4, 4, 3), np.uint8)
_NOTHING = torch.empty(0)
_DRAIN_S = 60.0
#: In a closed loop all cameras have a frame once the previous batch is reported; the delay matters for the first only.
_BATCH_DELAY_NS = 5_000_000


@dataclass(frozen=True)
class Window:
    """The counted interval, on the monotonic clock, which all processes of a machine share."""

    begin_ns: int
    end_ns: int

    @classmethod
    def ahead(cls, run_in_s: float, seconds: float) -> Window:
        """A window of `seconds` that starts `run_in_s` from now, to give every DNN time to warm up."""
        begin_ns = time.monotonic_ns() + round(run_in_s * 1e9)
        return cls(begin_ns, begin_ns + round(seconds * 1e9))


@dataclass
class Tally:
    """Inferences of one DNN. latencies_ns: of those that start and end in the window; an inference that ends later
    counts if it is the only one, so that every DNN has a sample. completed: how many end in the window, whenever they
    started: the one that runs when the window begins makes up for the one that runs at its end.
    """

    window: Window
    latencies_ns: list[int] = field(default_factory=list)
    completed: int = 0

    def add(self, begin_ns: int, end_ns: int) -> None:
        """Record a finished inference."""
        window = self.window
        self.completed += window.begin_ns < end_ns <= window.end_ns
        if begin_ns >= window.begin_ns and (end_ns <= window.end_ns or not self.latencies_ns):
            self.latencies_ns.append(end_ns - begin_ns)

    def wants_more(self, now_ns: int) -> bool:
        """Whether the DNN has to continue."""
        return now_ns < self.window.end_ns or not self.latencies_ns


class Loop(Protocol):
    """Runs prepared DNNs."""

    def run(self, window: Window) -> list[Tally]:
        """Run until the end of the window; one tally per DNN."""
        ...


@dataclass(frozen=True)
class OneDnnLoop:
    """A process with a single DNN. call: issues the work of one inference. wait: waits for its completion. mode:
    gradient mode of the thread.
    """

    call: Callable[[], object]
    wait: Callable[[], None]
    mode: Callable[[], AbstractContextManager[Any]] = torch.inference_mode

    def run(self, window: Window) -> list[Tally]:
        """See Loop."""
        tally, now = Tally(window), time.monotonic_ns()
        with self.mode():
            while tally.wants_more(now):
                began = now
                self.call()
                self.wait()
                now = time.monotonic_ns()
                tally.add(began, now)
        return [tally]


@dataclass
class _Job:
    """One job. stage: what to run. carried: its inputs, then its outputs. error: what it raised."""

    stage: Stage
    carried: Tensors
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


@dataclass(frozen=True)
class SharedQueueLoop:
    """The framework of the paper (section 3.2, Fig. 2) written directly in Python: the baseline Dcomp.(MT).

    DNN threads put jobs, runs of consecutive layers, into one FIFO queue. Pool threads, as many as DNNs, take them,
    issue their kernels on their own streams, wait for the GPU, and wake the DNN's thread, which puts the next job.
    chains, inputs: each DNN's stages, and inputs of the first one.
    """

    chains: Sequence[tuple[Stage, ...]]
    inputs: Sequence[Tensors]
    partition: Partition

    def run(self, window: Window) -> list[Tally]:
        """See Loop. Raises what a job raises."""
        tallies, errors = [Tally(window) for _ in self.chains], list[BaseException]()
        jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        pool = [threading.Thread(target=self._work, args=(jobs,), daemon=True) for _ in self.chains]
        dnns = [
            threading.Thread(target=self._serve, args=(jobs, *each, errors), daemon=True)
            for each in zip(self.chains, self.inputs, tallies, strict=True)
        ]
        for thread in (*pool, *dnns):
            thread.start()
        for thread in dnns:
            thread.join()
        for _ in pool:
            jobs.put(None)
        for thread in pool:
            thread.join()
        if errors:
            raise errors[0]
        return tallies

    def _serve(
        self, jobs: queue.SimpleQueue[_Job | None], chain: tuple[Stage, ...], inputs: Tensors, tally: Tally,
        errors: list[BaseException],
    ) -> None:  # fmt: skip
        """The thread of one DNN."""
        now = time.monotonic_ns()
        while tally.wants_more(now) and not errors:
            began, carried = now, inputs
            for stage in chain:
                job = _Job(stage, carried)
                jobs.put(job)
                job.done.wait()
                if job.error is not None:
                    errors.append(job.error)
                    return
                carried = job.carried
            now = time.monotonic_ns()
            tally.add(began, now)

    def _work(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        """A thread of the pool."""
        with torch.inference_mode(), self.partition.own_stream():
            while (job := jobs.get()) is not None:
                try:
                    # Allocated on another stream: keep the memory until this stream has read it.
                    results = job.stage(job.carried)
                    self.partition.synchronize()
                    job.carried = results
                except BaseException as error:  # passed on to the DNN's thread
                    job.error = error
                job.done.set()
                del job


@dataclass(frozen=True)
class EngineLoop:
    """This package's engine. tasks: each camera has a DNN of its own, or all share one DNN that batches their frames.

    An inference's time is from offering the frame to the result, per camera.
    """

    tasks: Sequence[DnnTask]
    partition: Partition

    def run(self, window: Window) -> list[Tally]:
        """See Loop. Raises RuntimeError if a DNN fails."""
        tallies = {camera: Tally(window) for task in self.tasks for camera in task.cameras}
        failures: list[Failure] = []

        def on_result(result: Result) -> None:
            now = time.monotonic_ns()
            camera = result.frame.camera
            tallies[camera].add(result.frame.stamp_ns, now)
            if tallies[camera].wants_more(now):
                offer(camera)

        def offer(camera: str) -> None:
            engine.offer(_FrameOnDevice(camera, time.monotonic_ns(), _IMAGE))

        device = self.partition.device
        engine = Engine(
            self.tasks,
            workers=default_workers(device, len(self.tasks)),
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
        finally:
            engine.stop(2.0)
        if failures:
            raise RuntimeError(f"{failures[0].dnn}: {failures[0].message}")
        if not finished:
            raise RuntimeError(f"the engine did not finish its frames within {_DRAIN_S:g} s after the end")
        return list(tallies.values())


class _FrameOnDevice(Frame):
    """A frame whose input is on the device already, so that nothing is uploaded."""

    def tensor(self, device: torch.device) -> torch.Tensor:
        return _NOTHING


def make_task(
    name: str, chains: Mapping[int, Sequence[Stage]], inputs: Tensors, partition: Partition, gate: Gate | None
) -> DnnTask:
    """A DNN whose input is already on the device, as in all other conditions. Its camera has the DNN's name.

    chains: stages by batch size, 1 included. gate: that of its networks on a GPU.
    """
    task = DnnTask(
        name, (name,), lambda image: inputs, (), lambda outputs, size: None, sms=partition.sms or 0, gate=gate
    )
    if partition.device.type == "cuda":
        networks = {size: as_network(chain, size, no_outputs) for size, chain in chains.items()}
        memory = getattr(networks[1], "inputs", inputs)  # as if preprocessing had written there
        return replace(task, networks=networks, preprocess=lambda image: memory)
    return replace(
        task, stages=tuple(chains[1]), batches={size: tuple(chain) for size, chain in chains.items() if size > 1},
        single_launch=single_launches(chains),
    )  # fmt: skip


def no_outputs(outputs: Tensors) -> Tensors:
    """No output is copied to the host, as in the other conditions."""
    return ()


def make_batched_task(
    name: str, cameras: Sequence[str], chains: Mapping[int, Sequence[Stage]], inputs: Tensors, partition: Partition,
    gate: Gate | None,
) -> DnnTask:  # fmt: skip
    """A DNN that batches several cameras. chains: stages by batch size, 1 included."""
    task = make_task(name, chains, inputs, partition, gate)
    return replace(task, cameras=tuple(cameras), batch_delay_ns=_BATCH_DELAY_NS)
