"""The file of jobs, read again when it changes."""

from __future__ import annotations

from pathlib import Path

from multi_dnn_ros.fleet.jobs_file import read_jobs_file


class WatchedJobsFile:
    """content: the last valid content."""

    def __init__(self, path: Path) -> None:
        """Raises JobsFileError."""
        self.path = path
        self._stamp = self._modified()  # taken before the file is read, so that a later change is noticed
        self.content = read_jobs_file(path)

    def changed(self) -> bool:
        """Read the file if it was written since the last call. Returns whether there is new content.

        Raises JobsFileError for a file with mistakes, once for each change of the file; `content` stays.
        """
        stamp = self._modified()
        if stamp in (None, self._stamp):
            return False
        self._stamp = stamp
        self.content = read_jobs_file(self.path)
        return True

    def _modified(self) -> int | None:
        """Time of the last change, ns; None while an editor replaces the file."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return None
