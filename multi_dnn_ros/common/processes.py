"""How processes of ours end: with their parent, by an interrupt, or by a signal. Imports nothing slow."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Exit code of a process whose parent has ended.
EXIT_ORPHANED = 72
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends. parent: id of its process.

    Exits with EXIT_ORPHANED if that process has already ended.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        print(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}", file=sys.stderr)
    if os.getppid() != parent:  # it ended before the call
        os._exit(EXIT_ORPHANED)


def end_with_parent() -> None:
    """End this process, with exit code 1, when the process that started it through multiprocessing has ended.

    For processes that may be waiting for each other at that moment, such as in a collective operation of NCCL.
    """
    import multiprocessing
    from multiprocessing import connection

    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)  # the other threads may never return

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def describe_exit(code: int | None) -> str:
    """How a process with this exit code ended. None: it is running, but has closed its connection."""
    if code is None:
        return "closed its connection"
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (the kernel does this when memory runs out)" if code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{hint}"


@contextmanager
def interrupts() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a closed terminal (not under ``nohup``), raise KeyboardInterrupt in the main thread."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        if number != signal.SIGHUP or before[number] != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
