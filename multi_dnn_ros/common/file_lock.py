"""Locks against a second process that would write the same files."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from multi_dnn_ros.common.errors import CommandError

log = logging.getLogger(__name__)

#: Longest wait for a lock.
_WAIT_S = 600.0


def lock_file(path: Path, taken: str) -> contextlib.ExitStack:
    """Create the file and its folder, and lock it until the returned stack is closed or this process ends.

    taken: message of the CommandError that is raised if the file is locked already. Raises OSError if the file cannot
    be written, NotImplementedError on a file system without locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise CommandError(taken) from None
    held = contextlib.ExitStack()
    held.callback(lock.release)
    return held


@contextlib.contextmanager
def waiting_lock(path: Path, waiting: Callable[[str], object] = log.info) -> Iterator[None]:
    """Lock a file in the block; wait while another process or thread has locked it.

    waiting: called with a line for the log before a wait. The block also runs if the file cannot be written or locked,
    and after ten minutes, because the process that has locked it may hang: use the lock where a second writer costs
    time, but does no harm.
    """
    lock = filelock.FileLock(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            waiting(f"waiting for another process that has locked {path}")
            lock.acquire(timeout=_WAIT_S)
    except (OSError, NotImplementedError) as error:  # filelock.Timeout is an OSError, too
        log.debug("%s is not locked: %s", path, error)
    try:
        yield
    finally:
        lock.release()
