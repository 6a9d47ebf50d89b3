"""The processes of a condition: started, prepared, run at the same moment, and always ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import psutil

from multi_dnn_ros.benchmark.paper.loops import Window
from multi_dnn_ros.benchmark.paper.prepare import Work, make_loop
from multi_dnn_ros.common.captured_warnings import CapturedWarnings
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.memory import freeze_heap
from multi_dnn_ros.common.parent_watch import end_with_parent
from multi_dnn_ros.common.signal_mask import block_in_children
from multi_dnn_ros.common.thread_switching import short_switch_interval

#: Time between the request to run and the window, so that every process has received it and is warm.
RUN_IN_S = 0.2
#: Uncounted run before each run: restores memory, caches and clock rates of idle processes.
WAKE_S = 0.1
_RUN_EXTRA_S = 120.0
_END_S = 10.0


class ProcessGroupError(CommandError):
    """A process of a condition failed or stopped responding; the message says which and how."""


class ProcessGroup:
    """One process per entry of `works`; a context manager that ends them. name: the condition's, for messages."""

    def __init__(self, name: str, works: Sequence[Work]) -> None:
        self.name = name
        self._works = works
        self.pids: list[int] = []
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self._pools = [futures.ProcessPoolExecutor(1, context, _initialize) for _ in works]
        with block_in_children(signal.SIGINT):  # Ctrl-C reaches all processes; the parent ends these
            self.pids = self._call(self._pools, _RUN_EXTRA_S, os.getpid)

    def prepare(self, timeout_s: float, *, first_alone: bool = False) -> list[str]:
        """Prepare all DNNs on the device; returns the distinct warnings.

        first_alone: one process before the others, which then use its compilation results from the compiler's cache.
        """
        groups = [slice(0, 1), slice(1, None)] if first_alone else [slice(0, None)]
        notes = [
            note for part in groups for note in self._call(self._pools[part], timeout_s, _prepare, self._works[part])
        ]
        return list(dict.fromkeys(text for each in notes for text in each))

    def run(self, seconds: float) -> list[tuple[str, list[float]]]:
        """Run all DNNs of all processes concurrently; returns builder and times in ms of each DNN's inferences."""
        for length_s in (WAKE_S, seconds):
            windows = [Window.ahead(RUN_IN_S, length_s)] * len(self._pools)
            reports = self._call(self._pools, length_s + _RUN_EXTRA_S, _run, windows)
        return [dnn for report in reports for dnn in report]

    def close(self) -> None:
        """End the processes; kill those that do not end in time."""
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        for pid in self.pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                try:
                    process.wait(_END_S)
                except psutil.TimeoutExpired:
                    process.kill()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _call(
        self, pools: Sequence[futures.ProcessPoolExecutor], timeout_s: float, call: Callable[..., Any],
        arguments: Sequence[Any] = (),
    ) -> list[Any]:  # fmt: skip
        """Call a function in each process, with one of the arguments if there are any."""
        try:
            given: list[tuple[Any, ...]] = [(each,) for each in arguments] or [()] * len(pools)
            calls = [pool.submit(call, *each) for pool, each in zip(pools, given, strict=True)]
            futures.wait(calls, timeout_s)
            return [future.result(0.0) for future in calls]
        except futures.TimeoutError:
            raise ProcessGroupError(f"condition {self.name}: a process did not answer in {timeout_s:g} s") from None
        except BrokenProcessPool:
            raise ProcessGroupError(f"condition {self.name}: a process has ended by itself") from None
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            raise ProcessGroupError(f"condition {self.name}: {type(error).__name__}: {lines[0]}") from None


# -- in the processes, each of which has one work

_prepared: dict[str, Any] = {}


def _initialize() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _prepare(work: Work) -> list[str]:
    with CapturedWarnings() as warnings:
        _prepared.update(work=work, loop=make_loop(work))
    return warnings.messages


def _run(window: Window) -> list[tuple[str, list[float]]]:
    work: Work = _prepared["work"]
    # Both as in the node. The switch interval is for the engine only; other conditions keep Python's default.
    freeze_heap()
    with short_switch_interval() if work.condition.layout == "engine" else contextlib.nullcontext():
        tallies = _prepared["loop"](window)
    return [
        (network.builder, [latency / 1e6 for latency in tally.latencies_ns])
        for network, tally in zip(work.networks, tallies, strict=True)
    ]
