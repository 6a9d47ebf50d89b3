"""The framework of Kim, Kim, Kim 2022 (section 3.2, Fig. 2) written directly in Python: the baseline Dcomp.(MT).

DNN threads put jobs, runs of consecutive layers, into one FIFO queue. Pool threads take them, issue their kernels on
their own streams, wait for the GPU, and wake the DNN's thread, which puts the next job.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from multi_dnn_ros.backends import Stage, Tensors
from multi_dnn_ros.benchmark.paper.partition import Partition
from multi_dnn_ros.benchmark.paper.tally import Tally, Window

_JOIN_S = 60.0


@dataclass
class _Job:
    """One job. stage: what to run. carried: its inputs, then its outputs. error: what it raised."""

    stage: Stage
    carried: Tensors
    done: threading.Event = field(default_factory=threading.Event)
    host_ns: int = 0
    error: BaseException | None = None


class SharedQueue:
    """chains, inputs: each DNN's stages, and inputs of the first one. As many workers as DNNs, as in the paper."""

    def __init__(self, chains: Sequence[tuple[Stage, ...]], inputs: Sequence[Tensors], partition: Partition) -> None:
        self._chains = chains
        self._inputs = inputs
        self._partition = partition
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._workers = [
            threading.Thread(target=self._work, name=f"pool-{number}", daemon=True) for number in range(len(chains))
        ]
        for worker in self._workers:
            worker.start()

    def run(self, window: Window) -> list[Tally]:
        tallies = [Tally(window) for _ in self._chains]
        errors: list[BaseException] = []
        dnns = [
            threading.Thread(target=self._serve, args=(index, tally, errors), name=f"model-{index}", daemon=True)
            for index, tally in enumerate(tallies)
        ]
        for dnn in dnns:
            dnn.start()
        for dnn in dnns:
            dnn.join()
        if errors:
            raise errors[0]
        return tallies

    def close(self) -> None:
        for _ in self._workers:
            self._jobs.put(None)
        for worker in self._workers:
            worker.join(_JOIN_S)

    def _serve(self, index: int, tally: Tally, errors: list[BaseException]) -> None:
        """The thread of one DNN."""
        now = time.monotonic_ns()
        while tally.wants_more(now) and not errors:
            began = time.monotonic_ns()
            carried = self._inputs[index]
            for stage in self._chains[index]:
                job = _Job(stage, carried)
                self._jobs.put(job)
                job.done.wait()
                if job.error is not None:
                    errors.append(job.error)
                    return
                carried = job.carried
                tally.host_ns += job.host_ns
                tally.jobs += 1
            now = time.monotonic_ns()
            tally.add(began, now)

    def _work(self) -> None:
        """A thread of the pool."""
        with torch.inference_mode(), self._partition.own_stream():
            while (job := self._jobs.get()) is not None:
                try:
                    began = time.thread_time_ns()
                    # Allocated on another stream: keep the memory until this stream has read it.
                    results = job.stage(job.carried)
                    job.host_ns = time.thread_time_ns() - began
                    self._partition.synchronize()
                    job.carried = results
                except BaseException as error:  # passed on to the DNN's thread
                    job.error = error
                job.done.set()
                del job
