"""Whether a process of the fork server runs, how it has ended, also if the fork server itself has ended, and the end of
the processes that it has started.

multiprocessing learns the first two from the fork server only. When that ends, as by the kernel's lack of memory, it
takes all processes for ended with exit code 255, and kills none of them any more. So the process itself is asked, by
its pidfd.

Processes that a rank has started become children of this process when the rank ends before them. They are recognized by
their process group, which is that of the rank.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Any

from multi_dnn_ros.fleet.fork_server import SAMPLE_S, ServerWatch, has_ended

#: prctl() by which orphans in the tree of this process become its children, whose exit codes it can read.
_PR_SET_CHILD_SUBREAPER = 36
#: Exit code that multiprocessing gives if the fork server has ended; a process may also end with it.
_UNKNOWN = 255
#: Longest wait for the exit code of a process that has ended, in samples of the fork server: 30 s.
_CODE_SAMPLES = 300


class ForkedProcess:
    """A process of multiprocessing's fork server. Where the system has no pidfd, as multiprocessing sees it."""

    def __init__(self, process: Any) -> None:
        """process: a multiprocessing process that has just been started. To end the processes that it starts with it,
        it calls :func:`lead_process_group` first.
        """
        self.pid = int(process.pid)
        self._process = process
        self._code: int | None = None
        self._pidfd: int | None = None
        with suppress(OSError, AttributeError):  # it has ended already, or not Linux
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            self._pidfd = os.pidfd_open(self.pid)
            Finalize(self, os.close, (self._pidfd,))

    @property
    def exit_code(self) -> int | None:
        """As that of a multiprocessing process; None while it runs."""
        if self._code is None:
            code = self._process.exitcode
            self._code = self._own_exit_code(self._pidfd) if code == _UNKNOWN and self._pidfd is not None else code
        return self._code

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, also if its exit code is not known yet."""
        return has_ended(self._pidfd, 0.0) if self._pidfd is not None else self.exit_code is not None

    def join(self, timeout_s: float) -> None:
        """Wait until it has ended and its exit code is known. Then the processes that it has started are killed.

        If the fork server does not tell the exit code of a process that has ended, it is ended: this takes 10 s.
        """
        if self._pidfd is None:
            self._process.join(timeout_s)
        elif has_ended(self._pidfd, timeout_s):
            await_exit_code(self._process._popen)
        self.end_orphans()

    def kill(self) -> None:
        """Kill it, and the processes that it has started, unless it has ended."""
        if self.exit_code is not None:
            return
        kill_group(self.pid)
        if self._pidfd is None:
            self._process.kill()
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def end_orphans(self) -> bool:
        """After its end, kill the processes that it has started, and release those that have ended. Returns whether
        none is left; False while it runs.
        """
        if self.exit_code is None:  # asked first, because the process belongs to the group, too
            return False
        if self._pidfd is None:
            return True
        while True:
            try:
                ended = os.waitid(os.P_PGID, self.pid, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                return True
            if ended is None:  # so the number of the group is still that of these processes
                kill_group(self.pid)
                return False

    @staticmethod
    def _own_exit_code(pidfd: int) -> int | None:
        try:
            ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:  # the fork server still runs, and the code is right, or the process has just lost it
            return _UNKNOWN if has_ended(pidfd, 0.0) else None
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def await_exit_code(started: Any) -> None:
    """Wait until the fork server has told the exit code of a process that has ended. started: its Popen."""
    server = ServerWatch()
    for _ in range(_CODE_SAMPLES):
        if started.wait(SAMPLE_S) is not None or server.sample():
            return


class EndedProcesses:
    """Processes that are not used any more; ends what they have started."""

    def __init__(self) -> None:
        self._processes: list[ForkedProcess] = []

    def add(self, processes: Iterable[ForkedProcess]) -> None:
        """Processes that have ended, or have been killed."""
        self._processes += processes

    def release(self) -> None:
        """To be called regularly: orphans end some time after they were killed."""
        self._processes = [process for process in self._processes if not process.end_orphans()]


def lead_process_group() -> None:
    """Make the processes that this process starts recognizable as its own, see :class:`ForkedProcess`."""
    os.setpgid(0, 0)


def kill_group(pid: int) -> None:
    """Kill the process group that a process leads, if it leads one. The process itself must not have been released."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
