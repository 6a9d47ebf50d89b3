"""Locks against a second process that would write the same files."""

from __future__ import annotations

import errno
import fcntl
import logging
from pathlib import Path
from typing import TextIO

from multi_dnn_ros.common.errors import CommandError

log = logging.getLogger(__name__)

#: Errors of file systems without locks.
_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}


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
