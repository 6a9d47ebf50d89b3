"""The processes of a condition: started, prepared, run at the same moment, and always ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import psutil

from multi_dnn_ros.benchmark.paper.loops import Window
from multi_dnn_ros.common.captured_warnings import CapturedWarnings
from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.memory import freeze_heap
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


@dataclass(frozen=True)
class Request:
    """prepare: move the DNNs to the device and prepare them. Otherwise run them over the window."""

    prepare: bool = False
    window: Window | None = None


@dataclass(frozen=True)
class DnnReport:
    """Result of one DNN. latencies_ms: of the counted inferences. completed: how many ended in the window."""

    network: str
    latencies_ms: list[float]
    completed: int


@dataclass(frozen=True)
class Report:
    """Reply of a process. notes: warnings while preparing. error: why the request failed."""

    dnns: tuple[DnnReport, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""


class ProcessGroup:
    """One process per entry of `works`; a context manager that ends them.

    name: the condition's, for messages. The processes start immediately and do what needs no device; prepare() does
    the rest.
    """

    def __init__(self, name: str, works: Sequence[Any]) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self.name = name
        self._connections: list[Connection] = []
        self._processes = []
        try:
            for work in works:
                ours, theirs = context.Pipe()
                process = context.Process(target=serve, args=(theirs, work), name=f"{name}", daemon=True)
                with block_in_children(signal.SIGINT):
                    process.start()
                theirs.close()
                self._connections.append(ours)
                self._processes.append(process)
        except BaseException:
            self.close()
            raise

    def prepare(self, timeout_s: float, *, first_alone: bool = False) -> tuple[str, ...]:
        """Prepare all DNNs on the device; returns the distinct warnings.

        first_alone: one process before the others, which then use its compilation results from the compiler's cache.
        """
        numbers = list(range(len(self._processes)))
        groups = [numbers[:1], numbers[1:]] if first_alone else [numbers]
        reports = [report for group in groups for report in self._ask(group, Request(prepare=True), timeout_s)]
        return tuple(dict.fromkeys(note for report in reports for note in report.notes))

    def run(self, seconds: float) -> list[Report]:
        """Run all DNNs of all processes concurrently."""
        every = range(len(self._processes))
        self._ask(every, Request(window=Window.ahead(RUN_IN_S, WAKE_S)), _RUN_EXTRA_S)
        return self._ask(every, Request(window=Window.ahead(RUN_IN_S, seconds)), seconds + _RUN_EXTRA_S)

    def resident_bytes(self) -> int:
        """Memory exclusive to these processes (USS); 0 if unknown."""
        total = 0
        for process in self._processes:
            try:
                total += psutil.Process(process.pid).memory_full_info().uss
            except psutil.Error:
                return 0
        return total

    def stop(self) -> None:
        """Tell the processes to end, without waiting."""
        for connection in self._connections:
            connection.close()  # each process then reads EOF

    def close(self) -> None:
        """End the processes; kill those that do not end in time."""
        self.stop()
        deadline = time.monotonic() + _END_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def __enter__(self) -> ProcessGroup:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, numbers: Sequence[int], request: Request, timeout_s: float) -> list[Report]:
        for number in numbers:
            try:
                self._connections[number].send(request)
            except OSError:
                raise self._ended_error(number) from None
        deadline = time.monotonic() + timeout_s
        reports = [self._answer(number, deadline) for number in numbers]
        for report in reports:
            if report.error:
                raise ProcessGroupError(f"condition {self.name}: {report.error}")
        return reports

    def _answer(self, number: int, deadline: float) -> Report:
        connection = self._connections[number]
        try:
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                raise ProcessGroupError(f"condition {self.name}: process {number} did not answer in time")
            report = connection.recv()
        except (EOFError, OSError):
            raise self._ended_error(number) from None
        assert isinstance(report, Report)
        return report

    def _ended_error(self, number: int) -> ProcessGroupError:
        process = self._processes[number]
        process.join(_END_S)
        return ProcessGroupError(f"condition {self.name}: process {number} ended with exit code {process.exitcode}")


def serve(connection: Connection, work: Any) -> None:
    """Body of the process: serves requests until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    from multi_dnn_ros.benchmark.paper.prepare import build, make_loop

    built, loop, failure = None, None, ""
    try:
        built = build(work)
    except Exception as error:
        failure = _one_line(error)
    while True:
        try:
            request: Request = connection.recv()
        except (EOFError, OSError):
            return
        try:
            if built is None:
                answer = Report(error=failure)
            elif request.prepare:
                with CapturedWarnings() as warnings:
                    loop = make_loop(work, built)
                built = built[:0]  # free the host copies
                answer = Report(notes=tuple(warnings.messages))
            else:
                assert loop is not None
                assert request.window is not None
                answer = _run(loop, work, request.window)
        except Exception as error:
            answer = Report(error=_one_line(error))
        connection.send(answer)


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def _run(loop: Any, work: Any, window: Window) -> Report:
    # Both as in the node. The switch interval is for the engine only; other conditions keep Python's default.
    freeze_heap()
    with short_switch_interval() if work.condition.layout == "engine" else contextlib.nullcontext():
        tallies = loop.run(window)
    return Report(
        dnns=tuple(
            DnnReport(network.builder, [latency / 1e6 for latency in tally.latencies_ns], tally.completed)
            for network, tally in zip(work.networks, tallies, strict=True)
        )
    )
