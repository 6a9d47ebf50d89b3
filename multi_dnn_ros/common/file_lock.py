"""Locks against a second process that would write the same files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from multi_dnn_ros.common.errors import CommandError

log = logging.getLogger(__name__)

#: Errors of file systems without locks.
_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}

#: Longest wait for a lock, and time between two attempts.
_WAIT_S, _POLL_S = 600.0, 0.05


def lock_file(path: Path, taken: str, unprotected: str) -> TextIO:
    """Create the file and its folder, and lock it until the returned file is closed or this process ends.

    Processes that are forked meanwhile have a copy of the open file: the lock lasts until they have ended, too. The
    file is never removed, because a process that has just opened it would lock a file that others do not see.

    taken: message of the CommandError that is raised if the file is locked already. unprotected: what must not be done
    on a file system without locks, for the warning that is logged there. Raises OSError if the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise CommandError(taken) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            file.close()
            raise
        log.warning("%s cannot be locked (%s): %s", path, error.strerror, unprotected)
    return file


@contextlib.contextmanager
def waiting_lock(path: Path, waiting: Callable[[str], object] = log.info) -> Iterator[None]:
    """Lock a file in the block; wait while another process or thread has locked it. It is created and never removed.

    waiting: called with a line for the log before a wait. The block also runs if the file cannot be written or locked,
    and after ten minutes, because the process that has locked it may hang: use the lock where a second writer costs
    time, but does no harm.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("w", encoding="utf-8"))
            if _lock_within(file, path, waiting):
                # Closing is not enough: a process that was forked meanwhile has a copy of the open file.
                stack.callback(fcntl.flock, file, fcntl.LOCK_UN)
        yield


def _lock_within(file: TextIO, path: Path, waiting: Callable[[str], object]) -> bool:
    """Whether the file could be locked within _WAIT_S. Raises OSError."""
    end = time.monotonic() + _WAIT_S
    is_told = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not is_told:
                is_told = True
                waiting(f"waiting for another process that has locked {path}")
            if time.monotonic() >= end:
                log.warning("%s has been locked by another process for %g s; not waiting any longer", path, _WAIT_S)
                return False
            time.sleep(_POLL_S)
        else:
            return True
