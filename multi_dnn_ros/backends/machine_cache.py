"""Cache entries that are valid for one network on one machine only.

An entry is a folder ``<kind>/<network>-<facts>`` in the user's cache folder, named by two checksums: of the network,
and of the facts that the entry depends on: its setup, such as the precision, and the machine, such as the GPU and
versions of libraries. Several processes may use an entry at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from multi_dnn_ros.common.atomic_files import atomic_write
from multi_dnn_ros.common.resources import cache_folder

log = logging.getLogger(__name__)

#: Name of the file in an entry that holds what write() stored.
CONTENT = "content.json"
#: Longest wait for a lock.
_WAIT_S = 600.0


@dataclass(frozen=True)
class Key:
    """What an entry depends on. network: its checksum. title: the network's name, for the log."""

    network: str
    setup: Mapping[str, str]
    machine: Mapping[str, str]
    title: str = "the DNN"

    @property
    def name(self) -> str:
        """Name of the entry's folder."""
        text = json.dumps([dict(self.setup), dict(self.machine)], sort_keys=True)
        return f"{self.network[:16]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


class MachineCache:
    """The entries of one kind. what: what they hold, for messages. folder: None: `kind` in the user's cache folder.

    A file that is invalid or cannot be read or written is logged and ignored.
    """

    def __init__(self, kind: str, what: str, folder: Path | None = None) -> None:
        self._kind, self._folder = kind, folder
        self._what = what

    @property
    def folder(self) -> Path:
        """Folder of all entries; it need not exist."""
        return self._folder or cache_folder() / self._kind

    def entry(self, key: Key) -> Path | None:
        """The folder of an entry, created if it is missing; None if it cannot be written."""
        folder = self.folder / key.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("%s of %s are not cached: %s cannot be written: %s", self._what, key.title, folder, error)
            return None
        return folder

    def read(self, key: Key) -> Any:
        """The content that write() stored under this key; None if there is none."""
        path = self.folder / key.name / CONTENT
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            log.warning("%s in %s are not used: %s", self._what, path, error)
            return None

    def write(self, key: Key, content: Any) -> None:
        """Store `content`, JSON data."""
        path = self.folder / key.name / CONTENT
        try:
            with atomic_write(path) as temporary:
                temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            log.warning("%s of %s are not cached: %s cannot be written: %s", self._what, key.title, path, error)

    @contextlib.contextmanager
    def locked(self, entry: str) -> Iterator[None]:
        """Held while an entry is made, so that another process waits for it instead of making it, too. entry: its name.

        The block also runs where files cannot be locked, and after ten minutes: the process that has locked it may
        hang, and a second writer does no harm.
        """
        path = self.folder.parent / "locks" / f"{self._kind}-{entry}"
        lock = filelock.FileLock(path, timeout=_WAIT_S)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (OSError, NotImplementedError) as error:  # filelock.Timeout is an OSError, too
            log.debug("%s is not locked: %s", path, error)
        try:
            yield
        finally:
            lock.release()
