"""A lock on the folder of a fleet, because two fleets would write the same checkpoints."""

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


def lock_folder(folder: Path) -> TextIO:
    """Create the folder, and lock it until the returned file is closed or this process ends.

    On a file system without locks a warning is logged. Raises CommandError if another fleet uses the folder, OSError if
    it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / ".lock").open("w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise CommandError(f"{folder} is used by another fleet; end it first, or give another --folder") from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            file.close()
            raise
        log.warning("%s cannot be locked (%s): do not use it for two fleets at once", folder, error.strerror)
    return file
