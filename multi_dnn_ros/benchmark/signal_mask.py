"""Processes that are started with signals blocked."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


@contextmanager
def block_in_children(*signals: signal.Signals) -> Iterator[None]:
    """Processes that multiprocessing starts in the block have these signals blocked until they unblock them.

    A terminal sends SIGINT, and a service manager SIGTERM, to all processes. A process that does not ignore the signal
    yet, because it still imports modules, would end with a traceback, or earlier than its parent wants it to.
    """
    resource_tracker.ensure_running()  # its start unblocks SIGINT and SIGTERM
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
