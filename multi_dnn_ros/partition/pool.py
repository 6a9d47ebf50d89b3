"""The processes of units, from the command's side: a process pool with one process for each unit."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Concatenate, TypeVar

from multi_dnn_ros.common.errors import CommandError
from multi_dnn_ros.common.processes import describe_exit
from multi_dnn_ros.partition import worker
from multi_dnn_ros.planning.units import Unit, UnitError

R = TypeVar("R")


class UnitFailure(CommandError):
    """What a unit was asked for failed; the message names the unit and the reason."""


class OutOfMemory(UnitFailure):
    """A unit ran out of memory. Its process goes on."""


class UnitPool:
    """Units with a network loaded on each; a context manager that ends their processes.

    tables: by unit, a table without rows that describes what was loaded.
    """

    def __init__(self, units: Sequence[Unit], request: worker.NetworkRequest) -> None:
        """Raises UnitFailure if a unit cannot load the network."""
        self._executors: dict[str, ProcessPoolExecutor] = {}
        self._processes: dict[str, multiprocessing.process.BaseProcess] = {}
        context = multiprocessing.get_context("spawn")  # PyTorch's threads do not survive a fork
        futures = {}
        try:
            for unit in units:
                executor = self._executors[unit.name] = ProcessPoolExecutor(1, context, initializer=worker.start)
                before = set(multiprocessing.active_children())
                futures[unit.name] = executor.submit(worker.load, unit, request)
                (self._processes[unit.name],) = set(multiprocessing.active_children()) - before
            self.tables = self._results(futures)
        except BaseException:
            self._close(kill=True)
            raise

    def ask(
        self, method: Callable[Concatenate[worker.Network, ...], R], args: Mapping[str, tuple[Any, ...]]
    ) -> dict[str, R]:
        """What a method of the network returns on several units at the same time. args: its arguments by unit.

        Raises UnitFailure as soon as one unit fails.
        """
        return self._results({
            unit: self._executors[unit].submit(worker.call, method, *each) for unit, each in args.items()
        })  # fmt: skip

    def __enter__(self) -> UnitPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(kill=kind is not None)

    def _close(self, *, kill: bool) -> None:
        """kill: without waiting for what the processes are doing."""
        for process in self._processes.values() if kill else ():
            process.kill()
        for executor in self._executors.values():
            executor.shutdown(cancel_futures=True)

    def _results(self, futures: Mapping[str, Future[R]]) -> dict[str, R]:
        wait(futures.values(), return_when=FIRST_EXCEPTION)
        for unit, future in futures.items():
            error = future.exception() if future.done() else None
            if isinstance(error, BrokenProcessPool):
                process = self._processes[unit]
                process.join(5.0)
                raise UnitFailure(f"the process of unit {unit} {describe_exit(process.exitcode)}") from error
            if isinstance(error, MemoryError):
                raise OutOfMemory(f"unit {unit} ran out of memory: {error}") from error
            if isinstance(error, UnitError):
                raise UnitFailure(f"unit {unit}: {error}") from error
        return {unit: future.result() for unit, future in futures.items()}
