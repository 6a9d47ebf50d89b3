"""Ties a process to its parent. An engine process calls this first, so this module imports nothing slow."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

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


def ignore_stop_signals() -> None:
    """Ignore SIGINT (Ctrl-C) and SIGTERM (systemd sends it to all processes of a service): the parent ends us.

    The handlers do nothing. They are used instead of SIG_IGN, which programs started by this process would inherit.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
