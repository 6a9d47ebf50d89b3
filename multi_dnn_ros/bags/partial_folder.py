"""The temporary folder of a recording that is being written, and the removal of those whose process was killed."""

from __future__ import annotations

import fcntl
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TextIO

#: The locked file in the folder. A folder without it may have been created just now.
_LOCK = "lock"
#: What mkdtemp appends to the prefix.
_RANDOM = r"[a-z0-9_]{8}"


class PartialFolder:
    """A new folder beside `target`, locked until :meth:`remove` or the end of this process.

    The constructor removes the folders of earlier processes for the same target, except those that are locked. It does
    not recognize that of a process that was killed while it created the folder, and none on a file system without
    locks. Raises OSError if the folder cannot be created.
    """

    def __init__(self, target: Path) -> None:
        _remove_abandoned(target)
        self.path = Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))
        self._lock: TextIO | None = None
        try:
            new = self.path / f"{_LOCK}.new"
            self._lock = new.open("w", encoding="utf-8")
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                new.rename(self.path / _LOCK)  # only once it is locked
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


def _prefix(target: Path) -> str:
    return f"{target.name}.tmp-"


def _remove_abandoned(target: Path) -> None:
    for folder in target.parent.iterdir():
        if re.fullmatch(re.escape(_prefix(target)) + _RANDOM, folder.name) and not folder.is_symlink():
            with suppress(OSError), (folder / _LOCK).open("r+", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
