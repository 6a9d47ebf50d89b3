"""A lock on the folder of a fleet, because two fleets would write the same checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from multi_dnn_ros.common.file_lock import lock_file


def lock_folder(folder: Path) -> TextIO:
    """Create the folder, and lock it until the returned file is closed or this process ends.

    On a file system without locks a warning is logged. Raises CommandError if another fleet uses the folder, OSError if
    it cannot be written.
    """
    return lock_file(
        folder / ".lock",
        taken=f"{folder} is used by another fleet; end it first, or give another --folder",
        unprotected="do not use the folder for two fleets at once",
    )
