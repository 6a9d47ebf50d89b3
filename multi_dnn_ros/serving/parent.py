"""Ties a process to the one that started it. An engine process does this first: no slow imports here."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: Exit code of a process that found its parent gone.
EXIT_ORPHANED = 72
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Be killed when the thread that started us ends, whatever we are doing then. parent: its process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        print(f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}", file=sys.stderr)
    if os.getppid() != parent:  # it ended before that
        os._exit(EXIT_ORPHANED)


def leave_stop_signals_to_parent() -> None:
    """Ctrl-C, and SIGTERM, which systemd sends to all processes of a service: the parent ends us in its own order.

    Not SIG_IGN, which the programs that we start would inherit.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: None)
