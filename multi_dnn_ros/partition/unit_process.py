"""The command's side of unit processes: start them, send requests, wait with a time limit, end them."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, TypeVar

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.processes import describe_exit
from multi_dnn_ros.common.signal_mask import block_in_children
from multi_dnn_ros.partition import messages
from multi_dnn_ros.partition.blocks import Block
from multi_dnn_ros.partition.executor import NetworkRequest
from multi_dnn_ros.partition.worker import main
from multi_dnn_ros.planning.batch_units import Unit

R = TypeVar("R", bound=messages.Reply)

#: Time limit for loading a network or compiling it for a batch size, which can take minutes.
PREPARE_TIMEOUT_S = 1800.0
_END_TIMEOUT_S = 5.0


class UnitFailure(CommandError):
    """A request to a unit failed. lost: its process has ended. out_of_memory: the unit ran out of memory."""

    def __init__(self, unit: str, text: str, *, lost: bool, out_of_memory: bool) -> None:
        super().__init__(f"unit {unit} {text}")
        self.unit = unit
        self.text = text
        self.lost = lost
        self.out_of_memory = out_of_memory


@dataclass
class UnitProcess:
    """The process of one or more units. running: multiprocessing's process. hung: the unit that did not answer."""

    running: Any
    hung: str = ""


class UnitHandle:
    """The connection to one unit. opened: None until its network is loaded."""

    def __init__(self, unit: Unit, connection: Connection[Any, Any], process: UnitProcess) -> None:
        self.unit = unit
        self.connection = connection
        self.opened: messages.Opened | None = None
        self._process = process

    @property
    def pid(self) -> int:
        return int(self._process.running.pid)

    def send(self, request: messages.Request, blocks: Sequence[Block] = ()) -> None:
        """Send a request and the blocks it announces. Raises UnitFailure if the process has ended."""
        try:
            self.connection.send(request)
            for block in blocks:
                block.send(self.connection)
        except OSError:
            raise self._lost() from None

    def receive(self, expected: type[R], timeout_s: float, waited_s: float = 0.0) -> R:
        """The answer to the last request. A process that does not answer in time is killed. Raises UnitFailure.

        waited_s: time that the caller has waited before.
        """
        try:
            if not self.connection.poll(timeout_s):
                self._process.hung = self.unit.name
                self._process.running.kill()
                self._process.running.join(_END_TIMEOUT_S)
                text = f"did not answer within {waited_s + timeout_s:g} s; its process was killed"
                raise UnitFailure(self.unit.name, text, lost=True, out_of_memory=False)
            reply: Any = self.connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if isinstance(reply, messages.Failed):
            what = "ran out of memory" if reply.out_of_memory else "failed"
            text = f"{what}: {reply.text}"
            raise UnitFailure(self.unit.name, text, lost=False, out_of_memory=reply.out_of_memory)
        if not isinstance(reply, expected):
            raise TypeError(f"{self.unit.name} answered {type(reply).__name__}; expected {expected.__name__}")
        return reply

    def ask(self, request: messages.Request, expected: type[R], timeout_s: float, blocks: Sequence[Block] = ()) -> R:
        """Send a request and wait for its answer."""
        self.send(request, blocks)
        return self.receive(expected, timeout_s)

    def _lost(self) -> UnitFailure:
        process = self._process.running
        process.join(_END_TIMEOUT_S)
        code = process.exitcode
        if self._process.hung:
            text = f"ended with its process, which was killed because unit {self._process.hung} did not answer"
            return UnitFailure(self.unit.name, text, lost=True, out_of_memory=False)
        if code is None:
            process.kill()
        # The kernel's out-of-memory killer sends SIGKILL; nothing else here does.
        killed = code == -signal.SIGKILL
        return UnitFailure(self.unit.name, describe_exit(code), lost=True, out_of_memory=killed)


class UnitProcesses:
    """The processes of several units; a context manager that ends them. Units with equal `process` share one."""

    def __init__(self, units: Iterable[Unit]) -> None:
        self.handles: dict[str, UnitHandle] = {}
        self._processes: list[Any] = []
        groups: dict[str, list[Unit]] = {}
        for unit in units:
            groups.setdefault(unit.process, []).append(unit)
        context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
        try:
            for name, group in groups.items():
                pairs = [context.Pipe() for _ in group]
                unit_ends = [(unit, unit_end) for unit, (_, unit_end) in zip(group, pairs, strict=True)]
                process = context.Process(target=main, args=(unit_ends,), name=f"unit {name}", daemon=True)
                with block_in_children(signal.SIGINT):
                    process.start()
                self._processes.append(process)
                shared = UnitProcess(process)
                for unit, (own_end, unit_end) in zip(group, pairs, strict=True):
                    unit_end.close()  # so that the connection closes when the process ends
                    self.handles[unit.name] = UnitHandle(unit, own_end, shared)
        except BaseException:
            self.close()
            raise

    def open(self, network: NetworkRequest, precision: str, timeout_s: float = PREPARE_TIMEOUT_S) -> None:
        """Load the network on all units. Raises UnitFailure."""
        for handle in self.handles.values():
            handle.send(messages.Open(network, precision))
        for handle in self.handles.values():
            handle.opened = handle.receive(messages.Opened, timeout_s)

    def run(
        self, shares: Mapping[str, tuple[int, int]], timeout_s: float
    ) -> tuple[dict[str, messages.Ran], dict[str, UnitFailure], int]:
        """Run the range (first, count) of each unit at the same time.

        Returns answers and failures by unit, and the start time in ns on the monotonic clock.
        """
        answers: dict[str, messages.Ran] = {}
        failures: dict[str, UnitFailure] = {}
        begin = time.monotonic_ns()
        for name, (first, count) in shares.items():
            try:
                self.handles[name].send(messages.Run(first, count))
            except UnitFailure as failure:
                failures[name] = failure
        waiting = {name: self.handles[name] for name in shares if name not in failures}
        deadline = time.monotonic() + timeout_s
        while waiting:
            left = max(0.0, deadline - time.monotonic())
            ready = wait([handle.connection for handle in waiting.values()], left)
            for name, handle in list(waiting.items()):
                if ready and handle.connection not in ready:
                    continue
                del waiting[name]
                try:
                    # If none is ready, the time is up, and receive() raises for every unit.
                    times = (timeout_s, 0.0) if ready else (0.0, timeout_s)
                    answers[name] = handle.receive(messages.Ran, *times)
                except UnitFailure as failure:
                    failures[name] = failure
        return answers, failures, begin

    def close(self) -> None:
        """End the processes by closing their connections; kill those that do not end in time."""
        for handle in self.handles.values():
            handle.connection.close()
        deadline = time.monotonic() + _END_TIMEOUT_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()

    def __enter__(self) -> UnitProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
