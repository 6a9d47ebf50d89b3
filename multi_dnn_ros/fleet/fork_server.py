"""Ends multiprocessing's fork server if it does not answer, such as one that was stopped by SIGSTOP.

This process would wait for it without limit. After its end, what waits for it gets an error, the processes that it has
started go on, and multiprocessing starts another one for the next process.
"""

from __future__ import annotations

import multiprocessing.forkserver
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

#: Time between two samples. Samples are counted instead of time, because this process may have been stopped (Ctrl-Z).
SAMPLE_S = 0.1
#: Samples without CPU time after which a server that is to answer is ended: 10 s. While it imports PyTorch, which can
#: take longer, it uses CPU time.
_SILENT_SAMPLES = 100
#: Longest wait for the end of the server after it was killed.
_END_S = 5.0


class ServerWatch:
    """Watches the fork server while this process waits for its answer."""

    def __init__(self) -> None:
        self._seen: tuple[int, float] | None = None
        self._silent = 0

    def sample(self) -> bool:
        """To be called every SAMPLE_S. Ends a server that does not answer, and returns whether it has done so."""
        pid = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        if pid is None:
            return False
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:  # it has ended
            return False
        seen = pid, times.user + times.system
        self._silent = self._silent + 1 if seen == self._seen else 0
        self._seen = seen
        if self._silent < _SILENT_SAMPLES:
            return False
        _end(pid)
        return True


@contextmanager
def watched_server() -> Iterator[Callable[[], bool]]:
    """Watch the server, in a thread, while the block waits for it. Yields a function that returns whether the server
    was ended because it did not answer.
    """
    done, ended = threading.Event(), threading.Event()

    def watch() -> None:
        server = ServerWatch()
        while not done.wait(SAMPLE_S):
            if server.sample():
                ended.set()
                return

    thread = threading.Thread(target=watch, name="fork server watch", daemon=True)
    thread.start()

    def was_ended() -> bool:
        done.set()
        thread.join()
        return ended.is_set()

    try:
        yield was_ended
    finally:
        was_ended()


def has_ended(pidfd: int, timeout_s: float) -> bool:
    """Whether a process ends within a time."""
    poll = select.poll()  # not select(), whose descriptors must be below 1024
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000.0))


def _end(pid: int) -> None:
    """Kill the server, and wait until multiprocessing sees that it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(OSError, AttributeError):  # it has ended already, or not Linux
        pidfd = os.pidfd_open(pid)
        try:
            has_ended(pidfd, _END_S)
        finally:
            os.close(pidfd)
