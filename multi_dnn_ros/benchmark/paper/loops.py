"""Closed loops: each DNN starts its next inference on the result of the previous one.

All loops start at the same time and count within a window, so that the counted inferences run while all DNNs are warm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch

from multi_dnn_ros.backends import Stage, Tensors


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
    counts if it is the only one, so that every DNN has a sample.
    """

    window: Window
    latencies_ns: list[int] = field(default_factory=list)

    def add(self, begin_ns: int, end_ns: int) -> None:
        """Record a finished inference."""
        if begin_ns >= self.window.begin_ns and (end_ns <= self.window.end_ns or not self.latencies_ns):
            self.latencies_ns.append(end_ns - begin_ns)

    def wants_more(self, now_ns: int) -> bool:
        """Whether the DNN has to continue."""
        return now_ns < self.window.end_ns or not self.latencies_ns


#: Runs prepared DNNs until the end of the window; returns one tally per DNN, and raises what an inference raises.
Loop = Callable[[Window], list[Tally]]


def one_dnn_loop(infer: Callable[[], object], mode: Callable[[], AbstractContextManager[None]]) -> Loop:
    """A process with a single DNN. infer: runs one inference to its end. mode: gradient mode of the thread."""

    def run(window: Window) -> list[Tally]:
        with mode():
            return [_repeat(infer, window)]

    return run


def shared_queue_loop(
    chains: Sequence[tuple[Stage, ...]], inputs: Sequence[Tensors], stream: Callable[[], AbstractContextManager[object]]
) -> Loop:
    """The framework of the paper (section 3.2, Fig. 2) written directly in Python: the baseline Dcomp.(MT).

    DNN threads put jobs, runs of consecutive layers, into the one FIFO queue of a pool. Its threads, as many as DNNs,
    take them, issue their kernels on their own streams, wait for the GPU, and wake the DNN's thread, which puts the
    next job. chains, inputs: each DNN's stages, and inputs of the first one. stream: context of a thread of the pool.
    """

    def enter_stream() -> None:  # until the thread ends
        torch.inference_mode().__enter__()
        stream().__enter__()

    def job(stage: Stage, carried: Tensors) -> Tensors:
        results = stage(carried)  # `carried` is of another stream: its memory is kept until this stream has read it
        if results[0].is_cuda:
            torch.cuda.current_stream().synchronize()
        return results

    def run(window: Window) -> list[Tally]:
        count = len(chains)
        with ThreadPoolExecutor(count, "worker", enter_stream) as pool, ThreadPoolExecutor(count, "dnn") as dnns:

            def infer(number: int) -> None:
                carried = inputs[number]
                for stage in chains[number]:
                    carried = pool.submit(job, stage, carried).result()

            return list(dnns.map(lambda number: _repeat(lambda: infer(number), window), range(count)))

    return run


def _repeat(infer: Callable[[], object], window: Window) -> Tally:
    tally, now = Tally(window), time.monotonic_ns()
    while tally.wants_more(now):
        began = now
        infer()
        now = time.monotonic_ns()
        tally.add(began, now)
    return tally
