"""Processes of a comparison: each has a connection to the benchmark, and ends with it."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

from multi_dnn_ros.common.errors import CommandError, summarize_error
from multi_dnn_ros.common.processes import end_with_parent

#: A forked process cannot use CUDA.
CONTEXT = multiprocessing.get_context("spawn")


def start_process(stack: ExitStack, target: Callable[..., None], *arguments: Any) -> Connection:
    """Start a process that calls `target` with `arguments` and its end of the connection. stack: kills it."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_run, args=(target, *arguments, theirs), daemon=True)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # new processes ignore Ctrl-C: this one ends them
    process.start()
    signal.signal(signal.SIGINT, handler)
    theirs.close()
    stack.callback(process.join)
    stack.callback(process.kill)
    return ours


def receive(connection: Connection, timeout_s: float, name: str) -> Any:
    """The next answer of a process. Raises CommandError if it has failed or ended, or does not answer."""
    try:
        if not connection.poll(timeout_s):
            raise CommandError(f"{name} did not answer in {timeout_s:g} s")
        answer = connection.recv()
    except (EOFError, OSError):
        raise CommandError(f"{name} has ended by itself") from None
    if isinstance(answer, CommandError):
        raise CommandError(f"{name}: {answer}")
    return answer


def _run(target: Callable[..., None], *arguments: Any) -> None:
    end_with_parent()
    try:
        target(*arguments)
    except Exception as error:
        arguments[-1].send(CommandError(f"{type(error).__name__}: {summarize_error(error)}"))
        raise
